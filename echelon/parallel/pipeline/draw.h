// Draws what the ranks of a pipeline do over time.
#pragma once

#include <string>
#include <vector>

#include "echelon/parallel/pipeline/timeline.h"

namespace echelon {

// The words around a timeline.
struct Captions {
  std::string title = {};              // of a picture
  std::vector<std::string> rows = {};  // what to call them; empty: "rank 0", "rank 1", ...
  std::string note = {};               // under a picture, in lines
};

// For a terminal of `width` columns, 40 or more, and 30 beside the rows' names: one line a rank,
// with the share in which it is idle, then the time of the step and its bubble, then what the
// letters mean.
//
//   rank 0 |F0-F1-   I0=W0~F2-I1=W1~I2=W2~| 10%
//   rank 1 |   F0-I0=F1-I1=W0~F2-I2=W1~W2~| 10%
//          |<--- 10 ms, bubble 11.1% ---->|
//          F0 forward, I0 input, W0 weight of micro-batch 0; %: idle
//
// A box that is too narrow for its label has the letter and as many last digits as fit. Where slots
// would be narrower than a column, the middle of the step is left out.
std::string draw_text(const Timeline& timeline, int width,
                      const std::vector<std::string>& rows = {});

// As an SVG picture: boxes with the micro-batches' numbers, coloured by kind, paler for later
// chunks; what a box is, from when to when, shows under the mouse.
std::string draw_svg(const Timeline& timeline, const Captions& captions);
// Two of one step, one above the other on the same scale.
std::string draw_svg(const Timeline& predicted, const Timeline& measured, const Captions& captions);

}  // namespace echelon
