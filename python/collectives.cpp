// The collectives of the backend. Each checks its arguments in the caller's thread and queues the
// rest in the lane.
#include <numeric>
#include <utility>

#include "python/backend.h"
#include "python/reduction.h"

namespace echelon::python {
namespace {

void check_tensor(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK(tensor.device().is_cpu(), operation,
              ": backend echelon works on CPU tensors, not on ", tensor.device());
  TORCH_CHECK(tensor.layout() == at::kStrided, operation, ": a dense tensor is needed, not one of ",
              tensor.layout());
}

void check_tensors(const Tensors& tensors, const char* operation) {
  for (const auto& tensor : tensors) {
    check_tensor(tensor, operation);
    TORCH_CHECK(tensor.scalar_type() == tensors[0].scalar_type(), operation,
                ": the tensors must be of one type; got ", tensors[0].scalar_type(), " and ",
                tensor.scalar_type());
  }
}

template <class T>
T& only(std::vector<T>& list, const char* operation, const char* what) {
  TORCH_CHECK(list.size() == 1, operation, " takes one ", what, "; got ", list.size());
  return list[0];
}

at::Tensor& only_tensor(Tensors& tensors, const char* operation) {
  at::Tensor& tensor = only(tensors, operation, "tensor");
  check_tensor(tensor, operation);
  return tensor;
}

void check_root(std::int64_t root, int size, const char* operation) {
  TORCH_CHECK(root >= 0 && root < size, operation, ": invalid root rank ", root,
              "; the process group has ranks 0 to ", size - 1);
}

void check_number(std::size_t number, int size, const char* operation, const char* what) {
  TORCH_CHECK(number == std::size_t(size), operation, ": ", what,
              " must hold one tensor for each of the ", size, " ranks; it holds ", number);
}

void check_same_type(const at::Tensor& a, const at::Tensor& b, const char* operation) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), operation, ": the output is of type ",
              a.scalar_type(), ", the input of type ", b.scalar_type());
}

// Elements by rank, as the group counts them.
std::vector<std::size_t> counts_of(const Tensors& tensors) {
  std::vector<std::size_t> counts;
  for (const auto& tensor : tensors) counts.push_back(to_move(tensor).count);
  return counts;
}

at::Tensor packed(const Tensors& tensors) {
  if (tensors.size() == 1) return one_piece(tensors[0]);
  Tensors flat;
  for (const auto& tensor : tensors) flat.push_back(one_piece(tensor).view({-1}));
  return at::cat(flat);
}

at::Tensor room_for(const Tensors& tensors) {
  std::int64_t count = 0;
  for (const auto& tensor : tensors) count += tensor.numel();
  return at::empty({count}, tensors[0].options());
}

void unpack(const at::Tensor& flat, const Tensors& tensors) {
  std::int64_t start = 0;
  for (const auto& tensor : tensors) {
    tensor.copy_(flat.view({-1}).narrow(0, start, tensor.numel()).view(tensor.sizes()));
    start += tensor.numel();
  }
}

// Memory for results: the tensor's own if it is contiguous, otherwise a buffer to copy from.
at::Tensor room_for(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  return at::empty(tensor.sizes(), tensor.options());
}

void write_back(const at::Tensor& memory, const at::Tensor& tensor) {
  if (!memory.is_same(tensor)) tensor.copy_(memory);
}

void* data(const at::Tensor& tensor) { return tensor.numel() ? tensor.data_ptr() : nullptr; }

void gather_into(Group& group, const at::Tensor& output, const at::Tensor& input,
                 const CallOptions& call) {
  const at::Tensor in = one_piece(input), out = room_for(output);
  const auto [type, count] = to_move(in);
  group.all_gather(type, data(in), data(out),
                   std::vector<std::size_t>(std::size_t(group.size()), count), call);
  write_back(out, output);
}

void scatter_reduced(Group& group, const at::Tensor& output, const at::Tensor& input,
                     const c10d::ReduceOp& op, const CallOptions& call) {
  const at::Tensor in = one_piece(input), out = room_for(output);
  const std::vector<std::int64_t> counts(std::size_t(group.size()), output.numel());
  reduce_scatter(group, out, in, counts, op, call);
  write_back(out, output);
}

// Splits of the first dimension in elements; even splits if none are given.
std::vector<std::size_t> elements(const std::vector<std::int64_t>& splits, const at::Tensor& tensor,
                                  int size, const char* what) {
  const std::size_t all = to_move(tensor).count;
  const std::int64_t rows = tensor.dim() ? tensor.size(0) : 0;
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, "all_to_all: the first dimension of the ", what, ", ", rows,
                ", does not divide evenly over ", size, " ranks");
    return std::vector<std::size_t>(std::size_t(size), all / std::size_t(size));
  }
  TORCH_CHECK(splits.size() == std::size_t(size), "all_to_all: number of ", what, " splits, ",
              splits.size(), ", is not that of the ranks, ", size);
  TORCH_CHECK(std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) == rows,
              "all_to_all: the ", what, " splits do not sum up to its first dimension, ", rows);
  std::vector<std::size_t> counts;
  for (const auto split : splits)
    counts.push_back(rows ? all / std::size_t(rows) * std::size_t(split) : 0);
  return counts;
}

// Older versions of torch do not say for every operation whether the caller will wait at once.
template <class CallOptions_>
bool is_blocking(const CallOptions_& options) {
  if constexpr (requires { options.asyncOp; })
    return !options.asyncOp;
  else
    return false;
}

}  // namespace

template <class CallOptions_>
WorkPointer EchelonBackend::start(c10d::OpType type, const char* title,
                                  std::optional<Tensors> inputs, std::vector<Tensors> outputs,
                                  const CallOptions_& options, CollectiveWork::Body body) {
  return noted(CollectiveWork::start({.rank = rank_,
                                      .type = type,
                                      .title = title,
                                      .inputs = std::move(inputs),
                                      .outputs = std::move(outputs),
                                      .sequence = ++sequence_,
                                      .timeout = timeout_of(options.timeout)},
                                     lane_, std::move(body), is_blocking(options)));
}

WorkPointer EchelonBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor tensor = only_tensor(tensors, "broadcast");
  check_root(options.rootRank, size_, "broadcast");
  return start(c10d::OpType::BROADCAST, "echelon:broadcast", tensors, {tensors}, options,
               [group = group_, tensor, root = int(options.rootRank)](const CallOptions& call) {
                 const at::Tensor memory = one_piece(tensor);
                 const auto [type, count] = to_move(memory);
                 group->broadcast(type, data(memory), count, root, call);
                 write_back(memory, tensor);
               });
}

WorkPointer EchelonBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (!tensors.empty() && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  const at::Tensor tensor = only_tensor(tensors, "all_reduce");
  check_reduction(tensor, options.reduceOp);
  return start(c10d::OpType::ALLREDUCE, "echelon:all_reduce", tensors, {tensors}, options,
               [group = group_, tensor, op = options.reduceOp](const CallOptions& call) {
                 const at::Tensor memory = one_piece(tensor);
                 all_reduce(*group, memory, op, call);
                 write_back(memory, tensor);
               });
}

WorkPointer EchelonBackend::allreduce_sparse(Tensors& tensors,
                                             const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = only(tensors, "sparse all_reduce", "tensor");
  TORCH_CHECK(tensor.is_sparse() && tensor.device().is_cpu(),
              "sparse all_reduce takes a sparse COO tensor on the CPU");
  TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "sparse all_reduce only computes sums");
  return start(c10d::OpType::_ALLREDUCE_SPARSE, "echelon:sparse_all_reduce", tensors, {tensors},
               options, [group = group_, tensor](const CallOptions& call) {
                 all_reduce_sparse(*group, tensor, call);
               });
}

WorkPointer EchelonBackend::allreduce_coalesced(Tensors& tensors,
                                                const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK(!tensors.empty(), "all_reduce_coalesced: no tensors were given");
  check_tensors(tensors, "all_reduce_coalesced");
  check_reduction(tensors[0], options.reduceOp);
  return start(c10d::OpType::ALLREDUCE_COALESCED, "echelon:all_reduce", tensors, {tensors}, options,
               [group = group_, tensors, op = options.reduceOp](const CallOptions& call) {
                 const at::Tensor memory = packed(tensors);
                 all_reduce(*group, memory, op, call);
                 if (!memory.is_same(tensors[0])) unpack(memory, tensors);
               });
}

WorkPointer EchelonBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor tensor = only_tensor(tensors, "reduce");
  check_root(options.rootRank, size_, "reduce");
  check_reduction(tensor, options.reduceOp);
  return start(c10d::OpType::REDUCE, "echelon:reduce", tensors, {tensors}, options,
               [group = group_, tensor, op = options.reduceOp,
                root = int(options.rootRank)](const CallOptions& call) {
                 const at::Tensor memory = one_piece(tensor);
                 python::reduce(*group, memory, op, root, call);
                 if (group->rank() == root) write_back(memory, tensor);
               });
}

WorkPointer EchelonBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
  const at::Tensor input = only_tensor(inputs, "all_gather");
  const Tensors output = only(outputs, "all_gather", "list of outputs");
  check_number(output.size(), size_, "all_gather", "the output list");
  check_tensors(output, "all_gather");
  check_same_type(output[0], input, "all_gather");
  TORCH_CHECK(output[std::size_t(rank_)].numel() == input.numel(), "all_gather: the input has ",
              input.numel(), " elements, its place in the output ",
              output[std::size_t(rank_)].numel());
  return start(c10d::OpType::ALLGATHER, "echelon:all_gather", inputs, outputs, options,
               [group = group_, output, input](const CallOptions& call) {
                 const at::Tensor in = one_piece(input), out = room_for(output);
                 group->all_gather(to_move(in).type, data(in), data(out), counts_of(output), call);
                 unpack(out, output);
               });
}

WorkPointer EchelonBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& options) {
  Tensors outputs = {output}, inputs = {input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPointer EchelonBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "all_gather_into_tensor: ", outputs.size(),
              " outputs were given for ", inputs.size(), " inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(outputs[i], "all_gather_into_tensor");
    check_tensor(inputs[i], "all_gather_into_tensor");
    check_same_type(outputs[i], inputs[i], "all_gather_into_tensor");
    TORCH_CHECK(
        outputs[i].numel() == inputs[i].numel() * size_,
        "all_gather_into_tensor: output tensor size must be equal to world_size times input "
        "tensor size: ",
        outputs[i].numel(), " elements for ", size_, " times ", inputs[i].numel());
  }
  return start(c10d::OpType::_ALLGATHER_BASE, "echelon:_all_gather_base", inputs, {outputs},
               options, [group = group_, outputs, inputs](const CallOptions& call) {
                 for (std::size_t i = 0; i < inputs.size(); ++i)
                   gather_into(*group, outputs[i], inputs[i], call);
               });
}

WorkPointer EchelonBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  TORCH_CHECK(!inputs.empty(), "all_gather_coalesced: no tensors were given");
  check_number(outputs.size(), size_, "all_gather_coalesced", "the output list");
  for (const auto& input : inputs) check_tensor(input, "all_gather_coalesced");
  for (const auto& list : outputs) {
    TORCH_CHECK(list.size() == inputs.size(), "all_gather_coalesced: ", list.size(),
                " outputs of one rank for ", inputs.size(), " inputs");
    for (std::size_t i = 0; i < list.size(); ++i)
      TORCH_CHECK(
          list[i].numel() == inputs[i].numel() && list[i].scalar_type() == inputs[i].scalar_type(),
          "all_gather_coalesced: output ", i, " does not fit its input");
  }
  return start(c10d::OpType::ALLGATHER_COALESCED, "echelon:all_gather", inputs, outputs, options,
               [group = group_, outputs, inputs](const CallOptions& call) {
                 for (std::size_t i = 0; i < inputs.size(); ++i) {
                   Tensors output;
                   for (const auto& list : outputs) output.push_back(list[i]);
                   const at::Tensor out = room_for(output);
                   gather_into(*group, out, inputs[i], call);
                   unpack(out, output);
                 }
               });
}

WorkPointer EchelonBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::GatherOptions& options) {
  const at::Tensor input = only_tensor(inputs, "gather");
  check_root(options.rootRank, size_, "gather");
  Tensors output;
  if (options.rootRank == rank_) {
    output = only(outputs, "gather", "list of outputs");
    check_number(output.size(), size_, "gather", "the output list");
    check_tensors(output, "gather");
    check_same_type(output[0], input, "gather");
    for (const auto& one : output)
      TORCH_CHECK(one.numel() == input.numel(), "gather: an output has ", one.numel(),
                  " elements, the input ", input.numel());
  } else {
    TORCH_CHECK(outputs.empty(), "gather: only the root passes outputs");
  }
  return start(
      c10d::OpType::GATHER, "echelon:gather", inputs, outputs, options,
      [group = group_, output, input, root = int(options.rootRank)](const CallOptions& call) {
        const at::Tensor in = one_piece(input);
        const at::Tensor out = output.empty() ? at::Tensor() : room_for(output);
        const auto [type, count] = to_move(in);
        const std::vector<std::size_t> counts(std::size_t(group->size()), count);
        group->gather(type, data(in), output.empty() ? nullptr : data(out), counts, root, call);
        unpack(out, output);
      });
}

WorkPointer EchelonBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ScatterOptions& options) {
  const at::Tensor output = only_tensor(outputs, "scatter");
  check_root(options.rootRank, size_, "scatter");
  Tensors input;
  if (options.rootRank == rank_) {
    input = only(inputs, "scatter", "list of inputs");
    check_number(input.size(), size_, "scatter", "the input list");
    check_tensors(input, "scatter");
    check_same_type(output, input[0], "scatter");
    for (const auto& one : input)
      TORCH_CHECK(one.numel() == output.numel(), "scatter: an input has ", one.numel(),
                  " elements, the output ", output.numel());
  } else {
    TORCH_CHECK(inputs.empty(), "scatter: only the root passes inputs");
  }
  return start(
      c10d::OpType::SCATTER, "echelon:scatter",
      input.empty() ? std::nullopt : std::optional<Tensors>(input), {outputs}, options,
      [group = group_, output, input, root = int(options.rootRank)](const CallOptions& call) {
        const at::Tensor in = input.empty() ? at::Tensor() : packed(input);
        const at::Tensor out = room_for(output);
        const auto [type, count] = to_move(out);
        const std::vector<std::size_t> counts(std::size_t(group->size()), count);
        group->scatter(type, input.empty() ? nullptr : data(in), data(out), counts, root, call);
        write_back(out, output);
      });
}

WorkPointer EchelonBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ReduceScatterOptions& options) {
  const at::Tensor output = only_tensor(outputs, "reduce_scatter");
  const Tensors input = only(inputs, "reduce_scatter", "list of inputs");
  check_number(input.size(), size_, "reduce_scatter", "the input list");
  check_tensors(input, "reduce_scatter");
  check_same_type(output, input[0], "reduce_scatter");
  check_reduction(output, options.reduceOp);
  TORCH_CHECK(input[std::size_t(rank_)].numel() == output.numel(),
              "reduce_scatter: the output has ", output.numel(), " elements, its input ",
              input[std::size_t(rank_)].numel());
  return start(c10d::OpType::REDUCE_SCATTER, "echelon:reduce_scatter", input, {outputs}, options,
               [group = group_, output, input, op = options.reduceOp](const CallOptions& call) {
                 std::vector<std::int64_t> counts;
                 for (const auto& one : input) counts.push_back(one.numel());
                 const at::Tensor out = room_for(output);
                 python::reduce_scatter(*group, out, packed(input), counts, op, call);
                 write_back(out, output);
               });
}

WorkPointer EchelonBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& options) {
  Tensors outputs = {output}, inputs = {input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPointer EchelonBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "reduce_scatter_tensor: ", outputs.size(),
              " outputs were given for ", inputs.size(), " inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(outputs[i], "reduce_scatter_tensor");
    check_tensor(inputs[i], "reduce_scatter_tensor");
    check_same_type(outputs[i], inputs[i], "reduce_scatter_tensor");
    check_reduction(outputs[i], options.reduceOp);
    TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * size_,
                "reduce_scatter_tensor: input tensor must be the same size as output size times "
                "world size: ",
                inputs[i].numel(), " elements for ", size_, " times ", outputs[i].numel());
  }
  return start(c10d::OpType::_REDUCE_SCATTER_BASE, "echelon:_reduce_scatter_base", inputs,
               {outputs}, options,
               [group = group_, outputs, inputs, op = options.reduceOp](const CallOptions& call) {
                 for (std::size_t i = 0; i < inputs.size(); ++i)
                   scatter_reduced(*group, outputs[i], inputs[i], op, call);
               });
}

WorkPointer EchelonBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                          std::vector<std::int64_t>& back,
                                          std::vector<std::int64_t>& there,
                                          const c10d::AllToAllOptions& options) {
  check_tensor(output, "all_to_all");
  check_tensor(input, "all_to_all");
  check_same_type(output, input, "all_to_all");
  return start(c10d::OpType::ALLTOALL_BASE, "echelon:all_to_all", Tensors{input}, {{output}},
               options,
               [group = group_, output, input, from = elements(back, output, size_, "output"),
                to = elements(there, input, size_, "input")](const CallOptions& call) {
                 const at::Tensor in = one_piece(input), out = room_for(output);
                 group->all_to_all(to_move(in).type, data(in), data(out), to, from, call);
                 write_back(out, output);
               });
}

WorkPointer EchelonBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                     const c10d::AllToAllOptions& options) {
  check_number(outputs.size(), size_, "all_to_all", "the output list");
  check_number(inputs.size(), size_, "all_to_all", "the input list");
  check_tensors(outputs, "all_to_all");
  check_tensors(inputs, "all_to_all");
  check_same_type(outputs[0], inputs[0], "all_to_all");
  return start(c10d::OpType::ALLTOALL, "echelon:all_to_all", inputs, {outputs}, options,
               [group = group_, outputs, inputs](const CallOptions& call) {
                 const at::Tensor in = packed(inputs), out = room_for(outputs);
                 group->all_to_all(to_move(in).type, data(in), data(out), counts_of(inputs),
                                   counts_of(outputs), call);
                 unpack(out, outputs);
               });
}

WorkPointer EchelonBackend::barrier(const c10d::BarrierOptions& options) {
  return start(c10d::OpType::BARRIER, "echelon:barrier", std::nullopt, {}, options,
               [group = group_](const CallOptions& call) { group->barrier(call); });
}

}  // namespace echelon::python
