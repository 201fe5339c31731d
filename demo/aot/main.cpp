// Runs a file of magneto.aot_compile without Python, on memory of its own: all arguments are ones.
//
//     cmake -S demo/aot -B build/aot -DMAGNETO=$(python -c "import magneto, os; print(os.path.dirname(magneto.__file__))")
//     cmake --build build/aot && build/aot/run model.mag 8x128 ...
#include <magneto/aot.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace {

std::vector<int64_t> sizes_of(const std::string& text) {  // "8x128"
  std::vector<int64_t> sizes;
  for (size_t at = 0; at < text.size();) {
    size_t used = 0;
    sizes.push_back(std::stoll(text.substr(at), &used));
    at += used + 1;
  }
  return sizes;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return std::fprintf(stderr, "usage: %s FILE SIZES...\n", words[0]), 2;
  MagnetoProgram* program = magneto_open(words[1]);
  if (!program) return std::fprintf(stderr, "%s\n", magneto_error()), 1;
  if (magneto_argument_count(program) != static_cast<size_t>(count - 2)) {
    return std::fprintf(stderr, "it takes %zu tensors\n", magneto_argument_count(program)), 2;
  }
  std::vector<std::vector<int64_t>> sizes;
  std::vector<std::vector<float>> data;
  std::vector<MagnetoTensor> arguments;
  for (int i = 2; i < count; ++i) {
    sizes.push_back(sizes_of(words[i]));
    const int64_t elements = std::accumulate(sizes.back().begin(), sizes.back().end(), int64_t{1}, std::multiplies<>());
    data.emplace_back(elements, 1.0F);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto rank = static_cast<int32_t>(sizes[i].size());
    arguments.push_back({data[i].data(), MAGNETO_FLOAT32, rank, sizes[i].data(), nullptr, nullptr});
  }
  std::vector<MagnetoTensor> results(magneto_result_count(program));
  if (magneto_run(program, arguments.data(), results.data()) != 0) {
    return std::fprintf(stderr, "%s\n", magneto_error()), 1;
  }
  for (MagnetoTensor& result : results) {
    std::printf("[");
    for (int32_t d = 0; d < result.rank; ++d) std::printf("%s%lld", d ? ", " : "", (long long)result.sizes[d]);
    std::printf("] %a\n", result.dtype == MAGNETO_FLOAT32 ? *static_cast<float*>(result.data) : 0.0F);
    magneto_free(&result);
  }
  magneto_close(program);
  return 0;
}
