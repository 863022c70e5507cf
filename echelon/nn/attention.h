// Causal self-attention through the fastest kernel there is for the device, type and head width: on
// a CPU our own in fp32 (attention_cpu.h) and LibTorch's flash otherwise; on a GPU LibTorch's,
// which are cuDNN's or flash in bf16 and fp16, memory-efficient in fp32. None of them materialises
// the scores. Only what those GPU kernels do not take (fp64, odd head widths) runs as plain
// products and a softmax.
//
// Grouped queries: with fewer key/value heads than query heads, query head h reads key/value head
// h / (heads / kv_heads). Our own kernel does so in place; for LibTorch's, keys and values are
// repeated.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace echelon {

// `qkv` is [batch, tokens, (heads + 2 * kv_heads) * head width], as one projection gives it: a
// token's queries, keys and values. The result is [batch, tokens, heads * head width]. What the
// backward needs beside qkv and the result is appended to `saved` (always the same number of
// tensors).
at::Tensor attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     std::vector<at::Tensor>& saved);
inline constexpr std::size_t attention_saves = 5;

// The gradient for qkv; `saved` points at what attention() appended.
at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, std::int64_t heads, std::int64_t kv_heads,
                              const at::Tensor* saved);

// Which kernel a device and type get, for the plan: "Echelon (CPU)", "flash (CPU)", "cuDNN",
// "flash", "memory-efficient", "plain".
std::string attention_kernel(at::Device device, at::ScalarType type, std::int64_t head_width);

}  // namespace echelon
