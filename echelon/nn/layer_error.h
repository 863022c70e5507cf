// What goes wrong inside a layer, as one sentence that names it.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>

#include "echelon/base/error.h"
#include "echelon/nn/stack.h"

namespace echelon {

// Within a handler: throws Error with the layer's name, what it did to which tensor, and the first
// line of what was thrown, which is nested in it (std::rethrow_if_nested).
[[noreturn]] void throw_of_layer(const Stack& stack, int layer, const char* doing,
                                 const at::Tensor& given, const std::exception& thrown);

// Runs a piece of a layer. Errors of Echelon, such as a lost peer, pass as they are; those of
// torch, with its frames, and of a user's code become one sentence.
template <class Fn>
auto in_layer(const Stack& stack, int layer, const char* doing, const at::Tensor& given,
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
