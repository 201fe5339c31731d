#include "dispatch/stages.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "dispatch/log.h"
#include "dispatch/trace.h"

namespace magneto::dispatch {
namespace {

using graph::Stage;

/// `run_2026_11_21_15_30_00_123456-pid_789`, as torch.compile names it: one for a process.
const std::string& run_name() {
  static const std::string name = [] {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    const auto seconds = static_cast<time_t>(micros / 1'000'000);
    tm parts{};
    localtime_r(&seconds, &parts);
    char text[80];
    const size_t length = strftime(text, sizeof text, "run_%Y_%m_%d_%H_%M_%S_", &parts);
    snprintf(text + length, sizeof text - length, "%06d-pid_%d", static_cast<int>(micros % 1'000'000), getpid());
    return std::string(text);
  }();
  return name;
}

/// What may stand in a file's name.
std::string file_name(std::string text) {
  for (char& c : text) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '_';
  }
  return text.substr(0, 80);
}

/// Whether the debug directory gets the stage: it is none of the list.
bool is_written(Stage stage) {
  const std::string list = "," + settings().debug_dump_without + ",";
  return list.find("," + std::string(graph::facts(stage).name) + ",") == std::string::npos;
}

}  // namespace

Stages::Stages(const Context& context, std::string function)
    : report_(context.report && context.report->wants_stages ? context.report : nullptr),
      dump_(context.settings[&Settings::debug_dump]),
      function_(std::move(function)) {
  if (report_) report_->stages.emplace_back();
}

bool Stages::is_logged(Stage stage) {
  const char* artifact = graph::facts(stage).artifact;
  return *artifact && log_enabled(artifact);
}

/// What tlparse shows and can't be made later.
bool Stages::is_traced(Stage stage) {
  const CompileTrace* trace = CompileTrace::current();
  return trace && trace->is_on() &&
         (stage == Stage::functional || stage == Stage::normal_form || stage == Stage::loops);
}

bool Stages::insists_on(Stage stage) const { return report_ || (dump_ && is_written(stage)) || is_logged(stage); }

bool Stages::watches() const {
  const CompileTrace* trace = CompileTrace::current();
  return trace && trace->is_on();
}

bool Stages::wanted(Stage stage) const { return insists_on(stage) || is_traced(stage); }

void Stages::take(Stage stage, const std::string& text) {
  const graph::StageFacts& facts = graph::facts(stage);
  if (report_) report_->stages.back().emplace_back(facts.name, text);
  if (dump_ && is_written(stage)) write(stage, text);
  if (is_traced(stage)) CompileTrace::current()->stage(facts.name, text);
  if (!text.empty() && is_logged(stage)) {
    log(facts.artifact, std::string(facts.title) + " (" + function_ + ")\n" + text);
  }
}

void Stages::write(Stage stage, const std::string& text) {
  namespace fs = std::filesystem;
  static int number = 0;
  std::error_code error;
  if (folder_.empty()) {
    fs::path base = settings().debug_dir.empty() ? fs::current_path(error) : fs::path(settings().debug_dir);
    base = base / "torch_compile_debug" / run_name() / "magneto";
    const std::string name = std::to_string(number++) + "_" + file_name(function_);
    folder_ = base / name;
    fs::create_directories(folder_, error);
    announce(error ? "can't write stages to " + folder_ + ": " + error.message() : name + " debug trace: " + folder_);
    if (error) dump_ = false;
  }
  if (!dump_) return;
  std::ofstream file(fs::path(folder_) / graph::facts(stage).file);
  file << text;
  file.close();
  if (!file) announce("can't write stages to " + folder_);
}

}  // namespace magneto::dispatch
