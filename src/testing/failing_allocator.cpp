#include "testing/failing_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <utility>

namespace magneto::runtime {
namespace {

struct Failing {
  int64_t count = 0, first = -1;
  bool lasting = false;
};
thread_local Failing failing;

class FailingAllocator final : public c10::Allocator {
 public:
  explicit FailingAllocator(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    const int64_t number = failing.count++;
    if (failing.first >= 0 && (failing.lasting ? number >= failing.first : number == failing.first)) {
      C10_THROW_ERROR(Error, "DefaultCPUAllocator: can't allocate memory: a test says so");
    }
    return inner_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { inner_.copy_data(to, from, bytes); }

 private:
  c10::Allocator& inner_;
};

}  // namespace

int64_t fail_allocations(int64_t first, bool lasting) {
  static const bool installed = [] {
    c10::SetCPUAllocator(new FailingAllocator(*c10::GetCPUAllocator()), /*priority=*/255);
    return true;
  }();
  (void)installed;
  return std::exchange(failing, {0, first, lasting}).count;
}

}  // namespace magneto::runtime
