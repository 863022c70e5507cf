// Which keys a query of self-attention sees: those up to its own token if it is causal, and of
// those the keys of its own document. Documents are numbers of a batch's tokens ("mask", [samples,
// tokens]): 0 is padding, which sees nothing and is seen by nothing. So a mask of ones and zeros,
// as Hugging Face's attention_mask, marks padding, and numbers 1, 2, 3 mark documents that are
// packed into one row.
#pragma once

#include <ATen/core/Tensor.h>

namespace echelon {

struct Pass;

struct AttentionMask {
  bool causal = true;
  at::Tensor documents = {};  // int32 or int64; undefined: all tokens are one document
  // For GPUs: where the runs of equal numbers begin, which data/document_runs.h makes on the host.
  // Undefined: unknown.
  at::Tensor runs = {};
};

// With the documents of the pass's batch, if it has some.
AttentionMask attention_mask(const Pass& pass, bool causal);

// The documents as the CPU kernel reads them, [samples, tokens] of int32. Throws InvalidArgument if
// they have another size, another type, or negative numbers.
at::Tensor documents_on_cpu(const AttentionMask& mask, std::int64_t samples, std::int64_t tokens);

// Whether query i sees key j, as [samples or 1, 1, tokens, tokens], for operators that have all
// scores in memory. Padding sees padding here, so that no row is empty: such rows are set to zero
// afterwards, by zero_padding. Undefined if every query sees every key.
at::Tensor seen_keys(const AttentionMask& mask, std::int64_t tokens, at::Device device);

// In place: sets the rows of padding to zero; x is [samples, tokens, width].
void zero_padding(const AttentionMask& mask, at::Tensor x);

}  // namespace echelon
