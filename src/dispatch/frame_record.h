// Records of frames whose capture failed, for replay elsewhere, while `config.replay_record_enabled` asks for them.
// What stands in one, and the file, is magneto/_debug/record's.
#pragma once

#include <string>

#include "capture/capture.h"
#include "dispatch/context.h"

namespace magneto::dispatch {

/// The frame is about to run, in part at least, and what it was given may change, while a later part of it may fail to
/// be captured: keeps its beginning until the call ends. What was inlined and goes on after `exit`, in frames of its
/// own, belongs to it.
void remember_frame(const Context& context, const capture::Start& start, const runtime::Exit* exit);
/// Drops what was remembered in a call under the context, which ends.
void forget_frames(const Context& context);

/// Writes a record of the frame from its beginning. `failure`: what went wrong, if no error is set; an error stays, and
/// is told the file's name.
void record_frame(const Context& context, const capture::Start& start, const std::string& failure);
/// The same of a frame that was remembered and has run.
void record_remembered(const Context& context, PyCodeObject* code, const std::string& failure);

}  // namespace magneto::dispatch
