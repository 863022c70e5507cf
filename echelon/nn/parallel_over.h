// Splits the elements of a flat tensor over torch's threads.
//
// at::parallel_for does not do that outside torch itself: its loop is compiled into the caller. If
// the caller is compiled without OpenMP, the loop runs on one thread; with OpenMP, it runs on a
// thread pool other than torch's. This function goes through code that torch has compiled.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace echelon {

// Calls fn(begin, end) for parts of [0, numel), each of about `grain` elements or more. Rethrows
// what fn throws.
void parallel_over(const at::Tensor& flat, std::int64_t grain,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& fn);

// The same for [0, count), without a tensor.
void parallel_over(std::int64_t count, std::int64_t grain,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& fn);

}  // namespace echelon
