#include "echelon/nn/attention.h"

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "echelon/nn/attention_cpu.h"
#include "echelon/nn/attention_runs.h"

namespace echelon {
namespace {

enum class Kernel { own, cpu_flash, cudnn, flash, efficient, runs, plain };

Kernel kernel_for(at::Device device, at::ScalarType type, std::int64_t head_width) {
  if (device.is_cpu()) {
    return type == at::kFloat && head_width <= attention_cpu_widest_head ? Kernel::own
                                                                         : Kernel::cpu_flash;
  }
  // The fused GPU kernels read 16 bytes at a time along a head.
  if (type == at::kFloat) return head_width % 4 == 0 ? Kernel::efficient : Kernel::plain;
  if (type == at::kDouble || head_width % 8 != 0 || head_width > 256) return Kernel::plain;
  return head_width <= 128 ? Kernel::cudnn : Kernel::flash;
}

Kernel kernel_for(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                  const AttentionMask& mask) {
  const Kernel kernel =
      kernel_for(qkv.device(), qkv.scalar_type(), qkv.size(2) / (heads + 2 * kv_heads));
  if (!mask.documents.defined() || qkv.is_cpu() || kernel == Kernel::plain) return kernel;
  return mask.runs.defined() ? Kernel::runs : Kernel::plain;
}

struct Heads {
  at::Tensor q, k, v;  // [batch, heads, tokens, head width]
};

// [batch, kv heads, tokens, head width] -> [batch, heads, tokens, head width]; returns x itself if
// it already has that many heads.
at::Tensor repeat_heads(const at::Tensor& x, std::int64_t heads) {
  return x.size(1) == heads ? x : x.repeat_interleave(heads / x.size(1), 1);
}

// The gradient of repeat_heads.
at::Tensor sum_heads(const at::Tensor& grad, std::int64_t kv_heads) {
  if (grad.size(1) == kv_heads) return grad;
  return grad.unflatten(1, {kv_heads, grad.size(1) / kv_heads}).sum(2);
}

// Returns views, except for repeated keys and values.
Heads split(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const auto parts = qkv.unflatten(2, {heads + 2 * kv_heads, -1}).transpose(1, 2);
  return {parts.narrow(1, 0, heads), repeat_heads(parts.narrow(1, heads, kv_heads), heads),
          repeat_heads(parts.narrow(1, heads + kv_heads, kv_heads), heads)};
}

// [batch, heads, tokens, head width] -> [batch, tokens, width]; free if the kernel lays out its
// output by token.
at::Tensor merge(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

double scale_of(const Heads& heads) { return 1 / std::sqrt(static_cast<double>(heads.q.size(3))); }

// softmax(q k^T * scale) over the keys that are seen, with all scores in memory.
at::Tensor plain_weights(const Heads& heads, const AttentionMask& mask) {
  at::Tensor scores = at::matmul(heads.q, heads.k.transpose(2, 3)).mul_(scale_of(heads));
  const at::Tensor seen = seen_keys(mask, heads.q.size(2), scores.device());
  if (seen.defined()) scores.masked_fill_(seen.logical_not(), -INFINITY);
  return at::_softmax(scores, -1, /*half_to_float=*/false);
}

std::optional<at::Tensor> optional(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

// What LibTorch's CPU kernel adds to the scores; undefined without documents, since it knows the
// future itself.
at::Tensor bias_of(const AttentionMask& mask, const at::Tensor& q) {
  if (!mask.documents.defined()) return {};
  const at::Tensor seen = seen_keys(mask, q.size(2), q.device());
  return at::zeros(seen.sizes(), q.options()).masked_fill_(seen.logical_not(), -INFINITY);
}

Heads plain_backward(const at::Tensor& grad, const Heads& heads, const at::Tensor& weights) {
  const at::Tensor grad_weights = at::matmul(grad, heads.v.transpose(2, 3));
  const at::Tensor grad_scores =
      at::_softmax_backward_data(grad_weights, weights, -1, weights.scalar_type())
          .mul_(scale_of(heads));
  return {at::matmul(grad_scores, heads.k), at::matmul(grad_scores.transpose(2, 3), heads.q),
          at::matmul(weights.transpose(2, 3), grad)};
}

// All tokens of the batch, one after another, for attention_over_runs.
at::Tensor flat(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); }
TokenHeads flat(const Heads& heads) { return {flat(heads.q), flat(heads.k), flat(heads.v)}; }

AttentionRuns runs_of(const AttentionMask& mask, const at::Tensor& qkv) {
  return {.begins = mask.runs, .tokens = qkv.size(1), .causal = mask.causal};
}

at::Tensor attention_by(Kernel kernel, const at::Tensor& qkv, std::int64_t heads,
                        std::int64_t kv_heads, const AttentionMask& mask,
                        std::vector<at::Tensor>& saved) {
  const auto [q, k, v] = split(qkv, heads, kv_heads);
  const bool causal = mask.causal;
  switch (kernel) {
    case Kernel::own:
      break;
    case Kernel::cpu_flash: {
      const at::Tensor bias = bias_of(mask, q);
      auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          q, k, v, 0.0, causal && !bias.defined(), optional(bias));
      saved.insert(saved.end(), {lse, {}, {}, {}, {}});
      return merge(out);
    }
    case Kernel::cudnn: {
      auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
          at::_scaled_dot_product_cudnn_attention(q, k, v, {}, /*compute_log_sumexp=*/true, 0.0,
                                                  causal);
      saved.insert(saved.end(), {lse, seed, offset, cum_q, cum_k});
      return merge(out);
    }
    case Kernel::flash: {
      auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
          at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal);
      saved.insert(saved.end(), {lse, seed, offset, cum_q, cum_k});
      return merge(out);
    }
    case Kernel::efficient: {
      auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
          q, k, v, {}, /*compute_log_sumexp=*/true, 0.0, causal);
      saved.insert(saved.end(), {lse, seed, offset, {}, {}});
      return merge(out);
    }
    case Kernel::runs: {
      const at::Tensor out = attention_over_runs(flat(Heads{q, k, v}), runs_of(mask, qkv), saved);
      saved.emplace_back();
      return out.reshape({qkv.size(0), qkv.size(1), -1});
    }
    case Kernel::plain: {
      const at::Tensor weights = plain_weights({q, k, v}, mask);
      saved.insert(saved.end(), {weights, {}, {}, {}, {}});
      return merge(at::matmul(weights, v));
    }
  }
  return {};
}

}  // namespace

at::Tensor attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionMask& mask, std::vector<at::Tensor>& saved) {
  const Kernel kernel = kernel_for(qkv, heads, kv_heads, mask);
  if (kernel == Kernel::own) {
    auto [out, lse] = attention_cpu(qkv.contiguous(), heads, kv_heads, mask);
    saved.insert(saved.end(), {lse, {}, {}, {}, {}});
    return out;
  }
  at::Tensor out = attention_by(kernel, qkv, heads, kv_heads, mask, saved);
  zero_padding(mask, out);
  return out;
}
at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, std::int64_t heads, std::int64_t kv_heads,
                              const AttentionMask& mask, const at::Tensor* saved) {
  const Kernel kernel = kernel_for(qkv, heads, kv_heads, mask);
  if (kernel == Kernel::own) {
    return attention_cpu_backward(grad_out.contiguous(), qkv.contiguous(), {out, saved[0]}, heads,
                                  kv_heads, mask);
  }
  at::Tensor grad_rows = grad_out;
  if (mask.documents.defined()) {
    grad_rows = grad_out.clone(at::MemoryFormat::Contiguous);
    zero_padding(mask, grad_rows);
  }
  const auto [q, k, v] = split(qkv, heads, kv_heads);
  const auto by_head = [&](const at::Tensor& x) {
    return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
  };
  const at::Tensor o = by_head(out), grad = by_head(grad_rows);
  const at::Tensor &lse = saved[0], &seed = saved[1], &offset = saved[2], &cum_q = saved[3],
                   &cum_k = saved[4];
  const auto tokens = qkv.size(1);
  const bool causal = mask.causal;
  at::Tensor grad_q, grad_k, grad_v;
  switch (kernel) {
    case Kernel::own:
      break;
    case Kernel::cpu_flash: {
      const at::Tensor bias = bias_of(mask, q);
      std::tie(grad_q, grad_k, grad_v) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad, q, k, v, o, lse, 0.0, causal && !bias.defined(), optional(bias));
      break;
    }
    case Kernel::cudnn:
      std::tie(grad_q, grad_k, grad_v) = at::_scaled_dot_product_cudnn_attention_backward(
          grad, q, k, v, o, lse, seed, offset, {}, cum_q, cum_k, tokens, tokens, 0.0, causal);
      break;
    case Kernel::flash:
      std::tie(grad_q, grad_k, grad_v) = at::_scaled_dot_product_flash_attention_backward(
          grad, q, k, v, o, lse, cum_q, cum_k, tokens, tokens, 0.0, causal, seed, offset);
      break;
    case Kernel::efficient: {
      at::Tensor grad_bias;
      std::tie(grad_q, grad_k, grad_v, grad_bias) =
          at::_scaled_dot_product_efficient_attention_backward(
              grad, q, k, v, {}, o, lse, seed, offset, 0.0, {true, true, true, false}, causal);
      break;
    }
    case Kernel::runs: {
      const TokenHeads grads = attention_over_runs_backward(flat(grad), flat(Heads{q, k, v}),
                                                            flat(o), runs_of(mask, qkv), saved);
      const auto by_row = [&](const at::Tensor& x) {
        return x.unflatten(0, {qkv.size(0), tokens}).transpose(1, 2);
      };
      grad_q = by_row(grads.q), grad_k = by_row(grads.k), grad_v = by_row(grads.v);
      break;
    }
    case Kernel::plain: {
      const Heads grads = plain_backward(grad, {q, k, v}, saved[0]);
      grad_q = grads.q, grad_k = grads.k, grad_v = grads.v;
      break;
    }
  }
  return at::cat(
      {merge(grad_q), merge(sum_heads(grad_k, kv_heads)), merge(sum_heads(grad_v, kv_heads))}, 2);
}

std::string attention_kernel(at::Device device, at::ScalarType type, std::int64_t head_width) {
  switch (kernel_for(device, type, head_width)) {
    case Kernel::own:
      return "Echelon (CPU)";
    case Kernel::cpu_flash:
      return "flash (CPU)";
    case Kernel::cudnn:
      return "cuDNN";
    case Kernel::flash:
      return "flash";
    case Kernel::efficient:
      return "memory-efficient";
    case Kernel::runs:
      return "runs";
    case Kernel::plain:
      return "plain";
  }
  return {};
}

}  // namespace echelon
