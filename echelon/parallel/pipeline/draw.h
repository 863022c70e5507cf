// Draws the timeline of a pipeline's ranks.
#pragma once

#include <string>
#include <vector>

#include "echelon/parallel/pipeline/timeline.h"

namespace echelon {

// The text around a timeline.
struct Captions {
  std::string title = {};              // of the picture
  std::vector<std::string> rows = {};  // names of the rows; empty: "rank 0", "rank 1", ...
  std::string note = {};               // below the picture; may have several lines
};

// Draws for a terminal of `width` columns: at least 40, and at least 30 besides the names of the
// rows. One line per rank ends with the fraction of time in which the rank is idle. Below are the
// time of the step, its bubble and the meaning of the letters.
//
//   rank 0 |F0-F1-   I0=W0~F2-I1=W1~I2=W2~| 10%
//   rank 1 |   F0-I0=F1-I1=W0~F2-I2=W1~W2~| 10%
//          |<--- 10 ms, bubble 11.1% ---->|
//          F0 forward, I0 input, W0 weight of micro-batch 0; %: idle
//
// A box that is too narrow for its label shows the letter and as many of the last digits as fit. If
// slots would be narrower than a column, the middle of the step is left out.
std::string draw_text(const Timeline& timeline, int width,
                      const std::vector<std::string>& rows = {});

// Draws an SVG picture: boxes with the numbers of the micro-batches, coloured by kind, paler for
// later chunks. A tooltip shows what each box is and when it begins and ends.
std::string draw_svg(const Timeline& timeline, const Captions& captions);
// Draws two timelines of the same step, one above the other on the same scale.
std::string draw_svg(const Timeline& predicted, const Timeline& measured, const Captions& captions);

}  // namespace echelon
