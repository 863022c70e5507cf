#include "echelon/nn/attention_cpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

using Size = std::int64_t;
using kernels::AttentionShape;
using kernels::TokenRows;

AttentionShape shape_of(const at::Tensor& qkv, Size heads, Size kv_heads, bool causal) {
  return {.batch = qkv.size(0),
          .tokens = qkv.size(1),
          .query_heads = heads,
          .kv_heads = kv_heads,
          .head_width = qkv.size(2) / (heads + 2 * kv_heads),
          .causal = causal};
}

at::Tensor documents_of(const AttentionMask& mask, const AttentionShape& shape) {
  return mask.documents.defined() ? documents_on_cpu(mask, shape.batch, shape.tokens)
                                  : at::Tensor();
}

const std::int32_t* numbers_in(const at::Tensor& documents) {
  return documents.defined() ? documents.const_data_ptr<std::int32_t>() : nullptr;
}

template <class T>
struct Parts {
  TokenRows<T> q, k, v;
};

template <class T>
Parts<T> parts_of(T* qkv, const AttentionShape& shape) {
  const Size q = shape.query_heads * shape.head_width, k = shape.kv_heads * shape.head_width,
             stride = q + 2 * k;
  return {{qkv, stride}, {qkv + q, stride}, {qkv + q + k, stride}};
}

// Calls fn(begin, end, scratch) for parts of [0, units), on torch's threads. Torch allocates the
// scratch memory, so it begins at a cache line.
template <class Fn>
void over_units(Size units, Size scratch_size, const Fn& fn) {
  parallel_over(units, 1, [&](Size begin, Size end) {
    const at::Tensor scratch = at::empty({scratch_size}, at::kFloat);
    fn(begin, end, scratch.data_ptr<float>());
  });
}

}  // namespace

Attended attention_cpu(const at::Tensor& qkv, Size heads, Size kv_heads,
                       const AttentionMask& mask) {
  const AttentionShape shape = shape_of(qkv, heads, kv_heads, mask.causal);
  const at::Tensor documents = documents_of(mask, shape);
  const Size width = heads * shape.head_width;
  Attended attended{at::empty({shape.batch, shape.tokens, width}, qkv.options()),
                    at::empty({shape.batch, heads, shape.tokens}, qkv.options())};
  const auto [q, k, v] = parts_of(qkv.const_data_ptr<float>(), shape);
  const kernels::AttentionForward<float> arguments{.shape = shape,
                                                   .q = q,
                                                   .k = k,
                                                   .v = v,
                                                   .out = {attended.out.data_ptr<float>(), width},
                                                   .lse = attended.lse.data_ptr<float>(),
                                                   .documents = numbers_in(documents)};
  over_units(shape.batch * heads, kernels::cpu::attention_forward_scratch(shape),
             [&](Size begin, Size end, float* scratch) {
               kernels::cpu::attention_forward(arguments, begin, end, scratch);
             });
  return attended;
}

at::Tensor attention_cpu_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                                  const Attended& attended, Size heads, Size kv_heads,
                                  const AttentionMask& mask) {
  const AttentionShape shape = shape_of(qkv, heads, kv_heads, mask.causal);
  const at::Tensor documents = documents_of(mask, shape);
  const Size width = heads * shape.head_width;
  at::Tensor grad_qkv = at::empty_like(qkv);
  const auto [q, k, v] = parts_of(qkv.const_data_ptr<float>(), shape);
  const auto [grad_q, grad_k, grad_v] = parts_of(grad_qkv.data_ptr<float>(), shape);
  const kernels::AttentionBackward<float> arguments{
      .shape = shape,
      .grad_out = {grad_out.const_data_ptr<float>(), width},
      .q = q,
      .k = k,
      .v = v,
      .out = {attended.out.const_data_ptr<float>(), width},
      .lse = attended.lse.const_data_ptr<float>(),
      .grad_q = grad_q,
      .grad_k = grad_k,
      .grad_v = grad_v,
      .documents = numbers_in(documents)};
  over_units(shape.batch * kv_heads, kernels::cpu::attention_backward_scratch(shape),
             [&](Size begin, Size end, float* scratch) {
               kernels::cpu::attention_backward(arguments, begin, end, scratch);
             });
  return grad_qkv;
}

}  // namespace echelon
