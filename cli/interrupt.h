// Ctrl-C, SIGTERM and SIGHUP. Until end_in_order() is called they end the process at once, with
// exit code 130: there is nothing to save. From then on the first one sets interrupted(), and the
// program ends in its own time. A second Ctrl-C ends it at once. SIGTERM and SIGHUP may come
// several times (a scheduler sends them to a launcher and to its ranks, and the launcher passes
// them on): they only ask. A SIGHUP that is ignored (nohup) stays so.
#pragma once

#include <atomic>

namespace echelon::cli {

void take_interrupts();
void end_in_order();
const std::atomic<bool>& interrupted();
// The process says why it ends, and is not interrupted any more: a launcher ends the ranks of a job
// that failed, of which some may have said so by then.
void end_with_an_error();

}  // namespace echelon::cli
