#include "support/settings.h"

#include <algorithm>

namespace magneto {
namespace {

constexpr std::nullopt_t None = std::nullopt;

const SettingRow kRows[] = {
#define X(type, name, value, minimum, use, environment, torch, doc) \
  {#name, &Settings::name, minimum, SettingUse::use, environment, torch, doc},
#include "support/settings.def"
#undef X
};

}  // namespace

Settings& settings() {
  static Settings values;
  return values;
}

std::span<const SettingRow> setting_rows() { return kRows; }

const SettingRow* find_setting(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &SettingRow::name);
  return found == std::end(kRows) ? nullptr : found;
}

}  // namespace magneto
