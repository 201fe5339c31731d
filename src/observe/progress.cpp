#include "observe/progress.h"

#include <Python.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "python/imported.h"
#include "python/ref.h"
#include "support/settings.h"

namespace magneto::runtime {
namespace {

constexpr std::chrono::milliseconds kBetween{100};
constexpr size_t kBar = 20;

/// There is one line: a thread's compile has it, until it ends.
bool taken = false;
/// The compile that has it, for its own thread alone: drawing may wait for the GIL, and another thread's would end.
thread_local Progress* shown = nullptr;

bool is_terminal() {
  const char* kind = getenv("TERM");
  return isatty(STDERR_FILENO) && !(kind && strcmp(kind, "dumb") == 0);
}

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void write_all(const std::string& text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

/// Under the cell of a notebook, if there is one; an empty line ends it. False: there is none.
bool show_in_notebook(const std::string& line) {
  SavedError saved;
  static constinit Imported show("magneto._progress", "show");
  const Ref shown = Ref::steal(PyObject_CallFunction(show.get(), "s", line.c_str()));
  if (!shown) PyErr_WriteUnraisable(nullptr);
  return shown.get() == Py_True;
}

}  // namespace

Progress::Progress(std::string what) : what_(std::move(what)), begin_(Clock::now()), drawn_(begin_ - kBetween) {
  if (taken || settings().progress_seconds < 0) return;
  taken = true;
  shown = this;
}

Progress::~Progress() {
  if (shown != this) return;
  shown = nullptr;
  taken = false;
  if (!is_drawn_) return;
  in_notebook_ ? (void)show_in_notebook("") : write_all("\r\033[K");
}

void Progress::tick(const char* stage, size_t done, size_t total) {
  if (!shown) return;
  if (stage) shown->stage_ = stage;
  const Clock::time_point now = Clock::now();
  if (now - shown->begin_ < std::chrono::seconds(settings().progress_seconds) || now - shown->drawn_ < kBetween) return;
  shown->drawn_ = now;
  shown->draw(now, done, total);
}

void Progress::draw(Clock::time_point now, size_t done, size_t total) {
  if (is_nowhere_) return;
  char seconds[32];
  snprintf(seconds, sizeof seconds, " %.0f s", std::chrono::duration<double>(now - begin_).count());
  std::string line = "magneto: " + what_ + ": " + stage_;
  if (total > 0) {
    const size_t filled = std::min(kBar, kBar * done / total);
    line += " [" + std::string(filled, '#') + std::string(kBar - filled, '-') + "] " + std::to_string(done) + "/" +
            std::to_string(total);
  }
  line += seconds;
  if (!is_drawn_) {
    in_notebook_ = show_in_notebook(line);
    is_nowhere_ = !in_notebook_ && !is_terminal();
    if (is_nowhere_) return;
  } else if (in_notebook_) {
    show_in_notebook(line);
  }
  is_drawn_ = true;
  if (in_notebook_) return;
  if (const size_t width = terminal_width(); line.size() >= width) line = line.substr(0, width - 1);
  write_all("\r\033[K" + line);
}

}  // namespace magneto::runtime
