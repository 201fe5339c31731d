#include "python/abi/own_code.h"

namespace magneto {

PyObject* run_frame_plainly(PyThreadState* thread, Frame* frame, int throwflag) {
  return throwflag ? frame_throw(thread, frame) : frame_continue(thread, frame);
}

}  // namespace magneto
