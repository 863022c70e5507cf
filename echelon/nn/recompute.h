#pragma once

#include "echelon/base/named_enum.h"

namespace echelon {

// What backward recomputes, so that forward keeps less. selective: layers that support it (GPT's)
// keep the results of products and drop what is cheap to recompute; other layers keep everything.
// full: layers keep only their input and run forward again before their backward.
enum class Recompute { none, selective, full };
constexpr auto names_of(Recompute) { return names("none", "selective", "full"); }

}  // namespace echelon
