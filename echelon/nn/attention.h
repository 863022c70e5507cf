// Self-attention. The device, type and head width decide which kernel runs: on a CPU our own in
// fp32 (attention_cpu.h) and LibTorch's flash kernel in other types; on a GPU LibTorch's kernels,
// which are cuDNN's or flash in bf16 and fp16 and memory-efficient attention in fp32. None of them
// materialises the scores. Types and head widths that the GPU kernels do not support (fp64, odd
// widths) run as plain products and a softmax.
//
// Padding and packed documents (attention_mask.h) cost nothing in our own kernel. On a GPU each run
// of equal numbers is a sequence of its own for flash and for memory-efficient attention
// (attention_runs.h). LibTorch's CPU kernel gets them as a bias, and the plain formula masks its
// scores. Rows of padding are zeros and have zero gradients everywhere.
//
// Grouped queries: if there are fewer key/value heads than query heads, query head h reads
// key/value head h / (heads / kv_heads). Our own kernel reads them in place; for LibTorch's
// kernels, keys and values are repeated.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "echelon/nn/attention_mask.h"

namespace echelon {

// `qkv` is [batch, tokens, (heads + 2 * kv_heads) * head width], the output of one projection: each
// token's queries, keys and values. The result is [batch, tokens, heads * head width]. Appends the
// tensors that backward needs besides qkv and the result to `saved`; their number is always
// attention_saves.
at::Tensor attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionMask& mask, std::vector<at::Tensor>& saved);
inline constexpr std::size_t attention_saves = 5;

// The gradient of qkv. `saved` points at the first tensor that attention() appended.
at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, std::int64_t heads, std::int64_t kv_heads,
                              const AttentionMask& mask, const at::Tensor* saved);

// The kernel that this device, type and head width use without documents, for the plan: "Echelon
// (CPU)", "flash (CPU)", "cuDNN", "flash", "memory-efficient", "plain".
std::string attention_kernel(at::Device device, at::ScalarType type, std::int64_t head_width);

}  // namespace echelon
