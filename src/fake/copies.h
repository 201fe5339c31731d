// What an exported graph copies though, where sizes are 1, eager has the tensor itself: `x.t().contiguous()`.
#pragma once

#include <cstddef>

#include "fake/session.h"

namespace magneto::fake {

/// Asks after all about the copies that operators from this one on have made, where a later write tells a copy from the
/// tensor itself; of the others it is not asked any more.
void ask_about_copies(Session::Impl& session, size_t from);

}  // namespace magneto::fake
