// Runs a schedule over links.
//
// Each message is 32 bytes of header and the payload. The header says which step of which operation
// it belongs to, so ranks that made different calls find out at the first message instead of
// summing the wrong numbers. An empty piece is sent too, so that a rank that expects more finds
// out:
//
//   0   4  magic
//   4   4  the sender's step
//   8   8  number of the operation in its group
//   16  8  signature: operation, algorithm, type, reduction, root
//   24  8  bytes that follow
//
// A step may send data that the previous step is still receiving: it is forwarded in chunks as they
// arrive, so a long vector is in flight on all links of a ring at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "echelon/collective/call.h"
#include "echelon/collective/schedule.h"
#include "echelon/net/endpoint.h"
#include "echelon/net/link.h"

namespace echelon {

class Messenger {
 public:
  static constexpr int lanes = 2;

  // `members` are ranks of the job in the group's order. `link(member, lane)` returns the link,
  // opening it if needed, or nullptr while the other side has not connected yet.
  using LinkOf = std::function<Link*(int member, int lane, Deadline deadline)>;
  Messenger(Endpoint& endpoint, std::vector<int> members, int index, LinkOf link);

  struct Sent {
    std::uint64_t shared = 0, tcp = 0;  // payload bytes by kind of link
  };

  // `number` is the number of the operation in the group. With `wide`, partial sums of fp16 and
  // bf16 are sent as fp32: twice the bytes, and one rounding instead of one per step.
  Sent run(const Call& call, Algorithm algorithm, std::uint64_t number, bool spin, bool wide);

 private:
  struct Lane;
  class Run;
  Sent run_wide(const Call& call, Algorithm algorithm, std::uint64_t number, bool spin);
  std::byte* scratch(std::size_t bytes);

  Endpoint& endpoint_;
  std::vector<int> members_;
  int index_;
  LinkOf link_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::unique_ptr<std::byte[]> chunks_;
};

}  // namespace echelon
