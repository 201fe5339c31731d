#include "capture/exits/exit_builder.h"

#include "capture/capture.h"
#include "capture/exits/rebuild.h"
#include "capture/world/world.h"

namespace magneto::capture {

ExitBuilder::ExitBuilder(Capture& capture) : c(capture) {}
ExitBuilder::~ExitBuilder() = default;

void ExitBuilder::note_allocation_site(PyObject* object) {
  if (PyTuple_CheckExact(object)) {  // of itertools.tee
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      PyObject* item = PyTuple_GET_ITEM(object, i);
      if (!PyTuple_CheckExact(item) && !allocation_sites_.count(item)) note_allocation_site(item);
    }
    return;
  }
  if (is_scalar(object) || is_tensor(object) || is_builtin_container(object) || PyFunction_Check(object) ||
      PyMethod_Check(object) || c.world.is_outside(object)) {
    return;
  }
  // The object is not kept, its end may be noticed: an address used again leads to an early end of the segment at
  // worst.
  allocation_sites_[object] = {c.frame->info->code, c.frame->pc};
}

Restart ExitBuilder::restart_before(const BreakSite& site, std::string message, BreakReason reason) {
  restart = {site, {std::move(message), reason}};
  return {};
}

const BreakSite* ExitBuilder::allocation_site(PyObject* object) const {
  const auto born = allocation_sites_.find(object);
  return born == allocation_sites_.end() ? nullptr : &born->second;
}

/// An object that can't be made anew is alive at the end: the segment is captured again, to end in front of the
/// instruction that made it, so that the program makes it for real. What C code made (a group of itertools.groupby) was
/// born with what it refers to.
void ExitBuilder::restart_before_allocation(const Abandon& abandon) {
  if (!abandon.object) return;
  auto born = allocation_sites_.find(abandon.object);
  if (born == allocation_sites_.end() && Py_TYPE(abandon.object)->tp_traverse) {
    for (PyObject* parent : referents(abandon.object)) {
      if (born = allocation_sites_.find(parent); born != allocation_sites_.end()) break;
    }
  }
  if (born == allocation_sites_.end() || c.known_breaks.count(born->second)) return;
  throw restart_before(born->second, abandon.message);
}

}  // namespace magneto::capture
