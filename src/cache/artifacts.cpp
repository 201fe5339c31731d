// Layout: magic, seal over all that follows, then for each entry its key, the length of its content, the content. The
// seal is made with the cache's key if it has one, as an entry's checksum is: who does not know it can make none.
#include "cache/artifacts.h"

#include <string.h>

#include <memory>

#include "cache/cache.h"
#include "cache/directory.h"

namespace magneto::cache {
namespace {

constexpr std::string_view kMagic = "magneto artifacts 1\n";
constexpr size_t kDigest = sizeof(Digest);

std::shared_ptr<Directory> directory_or_throw() {
  std::shared_ptr<Directory> directory = used_directory();
  if (!directory) throw Unusable("there is no cache on disk: it is off, or can't be used");
  return directory;
}

}  // namespace

Artifacts pack_artifacts() {
  const std::shared_ptr<Directory> directory = directory_or_throw();
  Artifacts artifacts;
  std::string entries, content;
  for (const Digest& key : used_keys()) {
    if (directory->load(key, content) != Directory::Outcome::Found) continue;
    const uint64_t length = content.size();
    entries.append(bytes_of(key)).append(reinterpret_cast<const char*>(&length), sizeof length).append(content);
    artifacts.keys.push_back(key);
  }
  if (artifacts.keys.empty()) return artifacts;
  artifacts.bytes.append(kMagic).append(bytes_of(directory->seal(entries))).append(entries);
  return artifacts;
}

std::vector<Digest> unpack_artifacts(std::string_view bytes) {
  const std::shared_ptr<Directory> directory = directory_or_throw();
  if (!bytes.starts_with(kMagic) || bytes.size() < kMagic.size() + kDigest)
    throw BadArtifacts("these bytes were not made by save_cache_artifacts of this version");
  bytes.remove_prefix(kMagic.size());
  const auto take_digest = [&] {
    Digest digest;
    memcpy(digest.data(), bytes.data(), kDigest);
    bytes.remove_prefix(kDigest);
    return digest;
  };
  const Digest seal = take_digest();
  if (!directory->has_seal(seal, bytes))
    throw BadArtifacts("they are damaged, or were saved with another key (magneto.config.disk_cache_key_file)");
  std::vector<Digest> keys;
  while (!bytes.empty()) {
    uint64_t length;
    if (bytes.size() < kDigest + sizeof length) throw BadArtifacts("they are damaged");
    const Digest key = take_digest();
    memcpy(&length, bytes.data(), sizeof length);
    bytes.remove_prefix(sizeof length);
    if (bytes.size() < length) throw BadArtifacts("they are damaged");
    directory->store(key, bytes.substr(0, length));
    bytes.remove_prefix(length);
    keys.push_back(key);
  }
  note_used(keys);
  return keys;
}

}  // namespace magneto::cache
