// Turns an error inside a layer into one sentence that names the layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>

#include "echelon/base/error.h"
#include "echelon/nn/stack.h"

namespace echelon {

// Call inside a handler. Throws Error with the layer's name, the operation, its input tensors,
// and the first line of the original exception, which is nested (std::rethrow_if_nested).
[[noreturn]] void throw_of_layer(const Stack& stack, int layer, const char* doing,
                                 const Tensors& given, const std::exception& thrown);

// Runs a part of a layer. Echelon's own errors, such as a lost peer, pass through unchanged. Errors
// from torch, with its stack frames, and from user code become one sentence.
template <class Fn>
auto in_layer(const Stack& stack, int layer, const char* doing, const Tensors& given,
              const Fn& fn) {
  try {
    return fn();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& thrown) {
    throw_of_layer(stack, layer, doing, given, thrown);
  }
}

}  // namespace echelon
