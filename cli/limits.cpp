#include "cli/limits.h"

#include <fmt/format.h>

#include <new>
#include <system_error>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/process_memory.h"

namespace echelon::cli {
namespace {

// Address space that the smallest job maps after its start: heap, thread stacks, shared memory.
constexpr std::uint64_t least_left = 192 << 20;

// Below this a library's allocation may have failed for want of addresses: glibc grows the heap by
// 64 MiB at a time (keep_freed_memory), and a new thread's heap reserves as much.
constexpr std::uint64_t nearly_none = 128 << 20;

enum class Lack { nothing, memory, threads };

Lack lack_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return Lack::memory;
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    if (system->code() == std::errc::resource_unavailable_try_again) return Lack::threads;
    if (system->code() == std::errc::not_enough_memory) return Lack::memory;
  }
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    return lack_of(cause);
  } catch (...) {
  }
  return Lack::nothing;
}

}  // namespace

void require_address_space() {
  const AddressSpace space = address_space();
  if (!space.limited() || space.left() >= least_left) return;
  throw InvalidArgument(fmt::format(
      "the address space of a process is limited to {} (ulimit -v), and torch takes {} of it before "
      "a job begins: allow at least {} (ulimit -v {}), or any (ulimit -v unlimited)",
      human_bytes(space.limit), human_bytes(space.used), human_bytes(space.used + least_left),
      (space.used + least_left + 1023) / 1024));
}

std::string with_limit(const std::string& message, const std::exception& error) {
  if (message.find("ulimit") != std::string::npos) return message;
  const Lack lack = lack_of(error);
  const AddressSpace space = address_space();
  if (space.limited() && (lack != Lack::nothing || space.left() < nearly_none))
    return fmt::format(
        "{}; {} of the {} of address space that 'ulimit -v' allows a process are in use: raise it "
        "(ulimit -v unlimited)",
        message, human_bytes(space.used), human_bytes(space.limit));
  if (lack == Lack::threads)
    return fmt::format(
        "{}; no more threads can be started: raise the limit of processes and threads (ulimit -u, "
        "or that of the container), or start fewer ranks on this host",
        message);
  return message;
}

}  // namespace echelon::cli
