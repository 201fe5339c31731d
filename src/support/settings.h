// The settings of the process, and those that one compiled callable has of its own. The table is settings.def;
// magneto.config checks what is assigned. Needs the GIL to write.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace magneto {

struct Settings {
#define X(type, name, value, minimum, use, environment, torch, doc) type name = value;
#include "support/settings.def"
#undef X
  bool operator==(const Settings&) const = default;
};

/// Those that hold now.
Settings& settings();

/// Who sets it: the process; that, and `compile(options=...)` for one callable; tests of Magneto itself.
enum class SettingUse : uint8_t { Process, Callable, Tests };

struct SettingRow {
  std::string_view name;
  std::variant<bool Settings::*, int64_t Settings::*, double Settings::*, std::string Settings::*> member;
  std::optional<double> minimum;
  SettingUse use;
  const char *environment, *torch, *doc;
};
std::span<const SettingRow> setting_rows();
/// Null: there is no setting of that name.
const SettingRow* find_setting(std::string_view name);

/// A compiled callable's own settings; what it has none of is the process's.
class OwnSettings {
 public:
  /// Has one of its own from here on, with the value that it is to be given.
  Settings& add(const SettingRow& row) {
    rows_.push_back(&row);
    return values_;
  }

  template <typename T>
  const T& operator[](T Settings::* member) const {
    for (const SettingRow* row : rows_) {
      if (const auto* own = std::get_if<T Settings::*>(&row->member); own && *own == member) return values_.*member;
    }
    return settings().*member;
  }

 private:
  std::vector<const SettingRow*> rows_;
  Settings values_;
};

}  // namespace magneto
