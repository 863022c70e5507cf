// Requests and replies of the parameter servers as bytes (peer.h). All lengths are checked before
// memory is taken.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "echelon/parallel/server/peer.h"
#include "echelon/parallel/server/server.h"

namespace echelon::wire {

constexpr std::size_t most_applied = 256;  // updates told of in one reply
constexpr std::size_t most_runs = 20000;   // of a gradient that travels as rows

// A stretch of a gradient that is not zero, in elements.
struct Run {
  std::int64_t begin = 0, numel = 0;
  bool operator==(const Run&) const = default;
};

// A gradient travels as the rows of matrices that were touched (of an embedding: the words that
// occurred), where that is smaller; the rest is zero. `matrices` are [begin, rows, columns] within
// `grad`, in order. One run for all of it where nothing is saved.
struct Matrix {
  std::int64_t begin = 0, rows = 0, columns = 0;
};
std::vector<Run> runs_of(const at::Tensor& grad, const std::vector<Matrix>& matrices);

// The matrices of a range of the flat buffer, cut to whole rows.
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
// Sends a push and gives the payload's bytes.
std::uint64_t send_push(Peer& peer, const Push& push, const std::vector<Run>& runs,
                        Deadline deadline);
Push receive_push(Peer& peer, const Frame& request, const GradientShape& shape, Deadline deadline);

// As a request (kind begin) or as the reply to one for the state (kind ok). Gives the bytes of it.
std::uint64_t send(Peer& peer, const ParameterServer::Beginning& beginning, Deadline deadline,
                   Peer::Kind kind = Peer::ok);
ParameterServer::Beginning receive_beginning(Peer& peer, const Frame& frame, Deadline deadline);
// The reply to a request for the state, into tensors of its size. Gives how many updates changed
// anything. Throws InvalidArgument where it is another job's.
double receive_state(Peer& peer, const Frame& frame, const std::vector<at::Tensor>& into,
                     Deadline deadline);
void require_same_state(const ParameterServer::Beginning& state,
                        const std::vector<at::Tensor>& into);

}  // namespace echelon::wire
