#pragma once

#include "echelon/base/named_enum.h"

namespace echelon {

// What backward computes again, so that less is kept from forward. selective: layers that can
// (GPT's) keep what products gave and drop what is cheap; others keep all. full: layers keep their
// input alone and run again before their backward.
enum class Recompute { none, selective, full };
constexpr auto names_of(Recompute) { return names("none", "selective", "full"); }

}  // namespace echelon
