// The elements of a flat tensor, cut over torch's threads.
//
// at::parallel_for does not do that outside of torch itself: its loop is compiled into the caller,
// and without OpenMP there it runs on one thread; with OpenMP it would run on threads of another
// pool than torch's. This goes through code that torch has compiled.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace echelon {

// Calls fn(begin, end) for parts of [0, numel), each of about `grain` elements or more. What it
// throws comes out here.
void parallel_over(const at::Tensor& flat, std::int64_t grain,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& fn);

// The same for [0, count), where there is no tensor to cut.
void parallel_over(std::int64_t count, std::int64_t grain,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& fn);

}  // namespace echelon
