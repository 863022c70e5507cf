#include "echelon/parallel/server/wire.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "echelon/base/error.h"

namespace echelon::wire {
namespace {

// The index in this array is the type's code on the wire.
constexpr at::ScalarType types[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};
constexpr std::uint64_t most_elements = std::uint64_t{1} << 40;
constexpr std::uint64_t most_numbers = std::uint64_t{1} << 62;  // ClockTable::new_number
constexpr std::uint64_t most_ranges = 10000, most_states = 8, most_tasks = 30000;
constexpr std::size_t most_texts = 256, longest_text = 1000;

std::uint64_t number_of(at::ScalarType type) {
  const auto it = std::find(std::begin(types), std::end(types), type);
  if (it == std::end(types)) throw InvalidArgument("parameters of this type have no server");
  return std::uint64_t(it - std::begin(types));
}

}  // namespace

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::span<std::byte> writable(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

std::vector<Matrix> matrices_within(const std::vector<FlatUnit>& units, const OwnedRange& range) {
  std::vector<Matrix> matrices;
  for (const auto& unit : units) {
    if (!unit.trainable) continue;
    for (const auto& segment : unit.segments) {
      if (segment.shape.size() != 2 || segment.shape[1] == 0) continue;
      const auto columns = segment.shape[1], first = unit.begin + segment.offset;
      const auto row_at = [&](std::int64_t at) {  // the first row that begins at or after `at`
        return std::clamp<std::int64_t>((at - first + columns - 1) / columns, 0, segment.shape[0]);
      };
      const auto from = row_at(range.begin),
                 to = std::min(segment.shape[0],
                               std::max<std::int64_t>(0, (range.end - first) / columns));
      if (from < to) matrices.push_back({first + from * columns - range.begin, to - from, columns});
    }
  }
  return matrices;
}

std::vector<Run> runs_of(const at::Tensor& grad, const std::vector<Matrix>& matrices) {
  const std::vector<Run> all = {{0, grad.numel()}};
  std::vector<Run> runs;
  std::int64_t at = 0, kept = 0;
  const auto keep = [&](std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    kept += end - begin;
    if (!runs.empty() && runs.back().begin + runs.back().numel == begin)
      runs.back().numel += end - begin;
    else
      runs.push_back({begin, end - begin});
  };
  for (const auto& matrix : matrices) {
    keep(at, matrix.begin);
    // Works on a block of rows at a time, because torch allocates a temporary tensor.
    const auto block = std::max<std::int64_t>(1, (1 << 18) / matrix.columns);
    for (std::int64_t first = 0; first < matrix.rows; first += block) {
      const auto rows = std::min(block, matrix.rows - first);
      const at::Tensor touched =
          grad.narrow(0, matrix.begin + first * matrix.columns, rows * matrix.columns)
              .view({rows, matrix.columns})
              .ne(0)
              .any(1);
      const auto* row = touched.const_data_ptr<bool>();
      for (std::int64_t r = 0; r < rows; ++r)
        if (row[r])
          keep(matrix.begin + (first + r) * matrix.columns,
               matrix.begin + (first + r + 1) * matrix.columns);
    }
    at = matrix.begin + matrix.rows * matrix.columns;
  }
  keep(at, grad.numel());
  const auto element = static_cast<std::int64_t>(grad.element_size());
  const bool smaller = kept * element + 16 * std::ssize(runs) < grad.numel() * element;
  return smaller && runs.size() <= most_runs ? runs : all;
}

FrameWriter& write_task(FrameWriter& writer, const Task& task) {
  return writer.number(std::uint64_t(task.clock))
      .number(std::uint64_t(task.share))
      .number(std::uint64_t(task.number))
      .number(std::uint64_t(task.version));
}

Task read_task(FrameReader& reader) {
  Task task;
  task.clock = std::int64_t(reader.number_at_most(most_elements));
  task.share = int(reader.number_at_most(1 << 20));
  task.number = std::int64_t(reader.number_at_most(most_numbers));
  task.version = std::int64_t(reader.number_at_most(most_elements));
  return task;
}

FrameWriter& write_tasks(FrameWriter& writer, const std::vector<Task>& tasks) {
  writer.number(tasks.size());
  for (const auto& task : tasks) write_task(writer, task);
  return writer;
}

std::vector<Task> read_tasks(FrameReader& reader) {
  std::vector<Task> tasks(reader.number_at_most(most_tasks));
  for (auto& task : tasks) task = read_task(reader);
  return tasks;
}

Frame encode(const Complete& step) {
  FrameWriter writer;
  writer.number(std::uint64_t(step.clock));
  return write_tasks(writer, step.shares).frame(Peer::ok);
}

Complete decode_complete(const Frame& frame, const std::string& from) {
  FrameReader reader(frame, from);
  Complete step;
  step.clock = std::int64_t(reader.number_at_most(most_elements));
  step.shares = read_tasks(reader);
  reader.end();
  return step;
}

FrameWriter& write_texts(FrameWriter& writer, const std::vector<std::string>& texts) {
  const auto count = std::min(texts.size(), most_texts);
  writer.number(count);
  for (std::size_t i = 0; i < count; ++i) writer.text(texts[i].substr(0, longest_text));
  return writer;
}

std::vector<std::string> read_texts(FrameReader& reader) {
  std::vector<std::string> texts(reader.number_at_most(most_texts));
  for (auto& text : texts) text = reader.text(longest_text);
  return texts;
}

Frame encode(const ParameterServer::Next& next) {
  FrameWriter writer;
  writer.number(std::uint64_t(next.version));
  if (next.task) write_task(writer, *next.task);
  writer.number(next.applied.size());
  for (const auto& one : next.applied) {
    writer.number(std::uint64_t(one.clock))
        .number(bits_of(one.loss))
        .number(bits_of(one.norm))
        .number(bits_of(one.rate))
        .number(one.ages.size());
    for (const auto age : one.ages) writer.number(std::uint64_t(age));
  }
  writer.text(next.failure);
  write_texts(writer, next.lost);
  return writer.frame(next.task ? Peer::ok : next.finished ? Peer::finished : Peer::wait);
}

ParameterServer::Next decode_next(const Frame& frame, const std::string& from) {
  FrameReader reader(frame, from);
  ParameterServer::Next next;
  next.finished = frame.kind == Peer::finished;
  next.version = std::int64_t(reader.number());
  if (frame.kind == Peer::ok) next.task = read_task(reader);
  next.applied.resize(reader.number_at_most(most_applied));
  for (auto& one : next.applied) {
    one.clock = std::int64_t(reader.number());
    one.loss = double_of(reader.number());
    one.norm = double_of(reader.number());
    one.rate = double_of(reader.number());
    one.ages.resize(reader.number_at_most(1 << 16));
    for (auto& age : one.ages) age = std::int64_t(reader.number());
  }
  next.failure = reader.text();
  next.lost = read_texts(reader);
  reader.end();
  return next;
}

std::uint64_t send_push(Peer& peer, const Push& push, const std::vector<Run>& runs,
                        Deadline deadline) {
  FrameWriter writer;
  write_task(writer, push.task).number(bits_of(push.weight)).number(runs.size());
  std::int64_t elements = 0;
  for (const auto& run : runs) {
    writer.number(std::uint64_t(run.begin)).number(std::uint64_t(run.numel));
    elements += run.numel;
  }
  const auto bytes = bytes_of(push.grad);
  const std::size_t element = push.grad.element_size();
  peer.send(writer.frame(Peer::push), deadline);
  for (const auto& run : runs)
    peer.send_raw(bytes.subspan(std::size_t(run.begin) * element, std::size_t(run.numel) * element),
                  deadline);
  return std::uint64_t(elements) * element;
}

Push receive_push(Peer& peer, const Frame& request, const GradientShape& shape, Deadline deadline) {
  FrameReader reader(request, peer.name());
  Push push;
  push.task = read_task(reader);
  push.weight = double_of(reader.number());
  std::vector<Run> runs(reader.number_at_most(most_runs));
  std::int64_t at = 0;
  for (auto& run : runs) {
    run.begin = std::int64_t(reader.number_at_most(std::uint64_t(shape.numel)));
    run.numel = std::int64_t(reader.number_at_most(std::uint64_t(shape.numel - run.begin)));
    if (run.begin < at) throw Corrupt(peer.name() + " sent runs of a gradient out of order");
    at = run.begin + run.numel;
  }
  reader.end();
  const bool whole = runs.size() == 1 && runs[0].numel == shape.numel;
  const auto options = at::TensorOptions(at::kCPU).dtype(shape.type);
  push.grad = whole ? at::empty({shape.numel}, options) : at::zeros({shape.numel}, options);
  const auto bytes = writable(push.grad);
  const std::size_t element = at::elementSize(shape.type);
  for (const auto& run : runs)
    peer.receive_raw(
        bytes.subspan(std::size_t(run.begin) * element, std::size_t(run.numel) * element),
        deadline);
  return push;
}

std::uint64_t send(Peer& peer, const ParameterServer::Beginning& beginning, Deadline deadline,
                   Peer::Kind kind) {
  FrameWriter writer;
  writer.number(number_of(beginning.type))
      .number(std::uint64_t(beginning.version))
      .number(bits_of(beginning.updates))
      .number(beginning.ranges.size());
  for (const auto& range : beginning.ranges)
    writer.number(std::uint64_t(range.begin))
        .number(std::uint64_t(range.numel))
        .number(range.update.decay)
        .number(bits_of(range.update.rate))
        .number(range.update.own_decay.has_value())
        .number(bits_of(range.update.own_decay.value_or(0)));
  writer.number(beginning.state.size()).number(std::uint64_t(beginning.state.at(0).numel()));
  peer.send(writer.frame(kind), deadline);
  std::uint64_t bytes = 0;
  for (const auto& one : beginning.state) {
    peer.send_raw(bytes_of(one), deadline);
    bytes += one.nbytes();
  }
  return bytes;
}

namespace {

// The state without its tensors.
struct StateHead {
  ParameterServer::Beginning beginning;
  std::uint64_t states = 0;
  std::int64_t numel = 0;
};

UpdateRule read_rule(FrameReader& reader, const Peer& peer) {
  UpdateRule rule{.decay = reader.number_at_most(1) != 0, .rate = double_of(reader.number())};
  const bool has_decay = reader.number_at_most(1) != 0;
  const double decay = double_of(reader.number());
  for (const double one : {rule.rate, decay})
    if (!std::isfinite(one) || one < 0)
      throw Corrupt(peer.name() + " sent a rate or a weight decay that is none");
  if (has_decay) rule.own_decay = decay;
  return rule;
}

StateHead read_head(Peer& peer, const Frame& frame) {
  FrameReader reader(frame, peer.name());
  StateHead head;
  auto& beginning = head.beginning;
  beginning.type = types[reader.number_at_most(std::size(types) - 1)];
  beginning.version = std::int64_t(reader.number_at_most(most_elements));
  beginning.updates = double_of(reader.number());
  beginning.ranges.resize(reader.number_at_most(most_ranges));
  for (auto& range : beginning.ranges) {
    range.begin = std::int64_t(reader.number_at_most(most_elements));
    range.numel = std::int64_t(reader.number_at_most(most_elements));
    range.update = read_rule(reader, peer);
  }
  head.states = reader.number_at_most(most_states);
  head.numel = std::int64_t(reader.number_at_most(most_elements));
  reader.end();
  for (const auto& range : beginning.ranges)
    if (range.begin + range.numel > head.numel)
      throw Corrupt(peer.name() + " sent a range beyond the end of its part");
  return head;
}

void require_same_size(std::uint64_t states, std::int64_t numel,
                       const std::vector<at::Tensor>& into) {
  if (states != into.size() || numel != into.at(0).numel())
    throw InvalidArgument("the servers' state is not that of this job");
}

}  // namespace

ParameterServer::Beginning receive_beginning(Peer& peer, const Frame& frame, Deadline deadline) {
  auto [beginning, states, numel] = read_head(peer, frame);
  const auto options = at::TensorOptions(at::kCPU).dtype(master_type(beginning.type));
  for (std::uint64_t i = 0; i < states; ++i) {
    beginning.state.push_back(at::empty({numel}, options));
    peer.receive_raw(writable(beginning.state.back()), deadline);
  }
  return std::move(beginning);
}

double receive_state(Peer& peer, const Frame& frame, const std::vector<at::Tensor>& into,
                     Deadline deadline) {
  const auto [beginning, states, numel] = read_head(peer, frame);
  require_same_size(states, numel, into);
  if (master_type(beginning.type) != into[0].scalar_type())
    throw InvalidArgument("the servers' state is of another precision than this job's");
  for (const auto& one : into) peer.receive_raw(writable(one), deadline);
  return beginning.updates;
}

void require_same_state(const ParameterServer::Beginning& state,
                        const std::vector<at::Tensor>& into) {
  require_same_size(state.state.size(), state.state.at(0).numel(), into);
}

}  // namespace echelon::wire
