// The wire format of the parameter servers' requests and replies (peer.h). All lengths are checked
// before memory is allocated.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "echelon/parallel/server/peer.h"
#include "echelon/parallel/server/server.h"

namespace echelon::wire {

constexpr std::size_t most_applied = 256;  // updates reported in one reply
constexpr std::size_t most_runs = 20000;   // runs of a gradient that is sent as rows

// A range of a gradient that may be nonzero, in elements.
struct Run {
  std::int64_t begin = 0, numel = 0;
  bool operator==(const Run&) const = default;
};

// If it is smaller, a gradient is sent as the rows of matrices that were touched (for an embedding:
// the tokens that occurred); the rest is zero. `matrices` are [begin, rows, columns] within `grad`,
// in order. Returns a single run for the whole gradient if sending rows saves nothing.
struct Matrix {
  std::int64_t begin = 0, rows = 0, columns = 0;
};
std::vector<Run> runs_of(const at::Tensor& grad, const std::vector<Matrix>& matrices);

// The matrices within a range of the flat buffer, cut to whole rows.
std::vector<Matrix> matrices_within(const std::vector<FlatUnit>& units, const OwnedRange& range);

std::span<const std::byte> bytes_of(const at::Tensor& tensor);
std::span<std::byte> writable(const at::Tensor& tensor);

FrameWriter& write_task(FrameWriter& writer, const Task& task);
Task read_task(FrameReader& reader);
FrameWriter& write_tasks(FrameWriter& writer, const std::vector<Task>& tasks);
std::vector<Task> read_tasks(FrameReader& reader);

FrameWriter& write_texts(FrameWriter& writer, const std::vector<std::string>& texts);
std::vector<std::string> read_texts(FrameReader& reader);

Frame encode(const Complete& step);
Complete decode_complete(const Frame& frame, const std::string& from);

Frame encode(const ParameterServer::Next& next);
ParameterServer::Next decode_next(const Frame& frame, const std::string& from);

struct Push {
  Task task;
  double weight = 0;
  at::Tensor grad;
};
struct GradientShape {
  std::int64_t numel = 0;
  at::ScalarType type = at::kFloat;
};
// Sends a push. Returns the bytes of its payload.
std::uint64_t send_push(Peer& peer, const Push& push, const std::vector<Run>& runs,
                        Deadline deadline);
Push receive_push(Peer& peer, const Frame& request, const GradientShape& shape, Deadline deadline);

// Sends it as a request (kind begin) or as the reply to a request for the state (kind ok). Returns
// the bytes sent.
std::uint64_t send(Peer& peer, const ParameterServer::Beginning& beginning, Deadline deadline,
                   Peer::Kind kind = Peer::ok);
ParameterServer::Beginning receive_beginning(Peer& peer, const Frame& frame, Deadline deadline);
// Receives the reply to a request for the state into tensors of its size. Returns how many updates
// changed the parameters. Throws InvalidArgument if the state belongs to another job.
double receive_state(Peer& peer, const Frame& frame, const std::vector<at::Tensor>& into,
                     Deadline deadline);
void require_same_state(const ParameterServer::Beginning& state,
                        const std::vector<at::Tensor>& into);

}  // namespace echelon::wire
