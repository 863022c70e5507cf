// Ctrl-C, SIGTERM and SIGHUP. Until end_in_order() is called they end the process at once, with
// exit code 130: there is nothing to save. From then on the first one sets interrupted(), and the
// program ends in order. A second Ctrl-C ends it at once. SIGTERM and SIGHUP may arrive several
// times (a scheduler sends them to a launcher and to its ranks, and the launcher forwards them), so
// a second one changes nothing. A SIGHUP that is ignored (nohup) stays ignored.
#pragma once

#include <atomic>

namespace echelon::cli {

void take_interrupts();
void end_in_order();
const std::atomic<bool>& interrupted();
// The process reports its own error, so a later signal prints nothing: the launcher ends the ranks
// of a failed job, and some of them may have reported an error by then.
void end_with_an_error();

}  // namespace echelon::cli
