// Arguments of self-attention, shared by the kernels of all devices.
//
// Which keys a query sees: those of its own document, and if the shape is causal, those up to its
// own token. Documents are numbers, one for each token: 0 is padding, which sees nothing and is
// seen by nothing. A row of padding gives zeros and gets zero gradients.
//
// Grouped queries (Ainslie et al., "GQA", 2023): several query heads attend to one key/value head.
// Query head h reads key/value head h / (query_heads / kv_heads); with as many of both it is
// multi-head attention.
#pragma once

#include <cstdint>

namespace echelon::kernels {

struct AttentionShape {
  std::int64_t batch = 0, tokens = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;  // divides query_heads
  std::int64_t head_width = 0;
  bool causal = true;

  std::int64_t queries_per_kv() const { return query_heads / kv_heads; }
};

// A row for each token of each sequence: element i of head h of token t of sequence s is
// data[(s * tokens + t) * stride + h * head_width + i]. The stride lets q, k and v be parts of one
// projection's result.
template <class T>
struct TokenRows {
  T* data = nullptr;
  std::int64_t stride = 0;
};

template <class T>
struct AttentionForward {
  AttentionShape shape;
  TokenRows<const T> q, k, v;
  TokenRows<T> out;      // query_heads * head_width numbers a token
  float* lse = nullptr;  // [batch, query_heads, tokens]: log2 of the sum of a row's 2^score
  const std::int32_t* documents = nullptr;  // [batch, tokens], not negative; nullptr: all are 1
};

template <class T>
struct AttentionBackward {
  AttentionShape shape;
  TokenRows<const T> grad_out, q, k, v, out;  // `out` is what the forward gave
  const float* lse = nullptr;                 // as well
  TokenRows<T> grad_q, grad_k, grad_v;        // written, not added to
  const std::int32_t* documents = nullptr;    // as in the forward
};

}  // namespace echelon::kernels
