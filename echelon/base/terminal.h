// The terminal that shows standard output, and the progress line that is redrawn on it.
//
// A rank's output goes through a pipe to its launcher. If the launcher forwards it unchanged and
// its own output is a terminal, it passes the terminal's path in ECHELON_TERMINAL, and the rank
// draws for that terminal, in its current width.
#pragma once

#include <string>
#include <string_view>

namespace echelon::terminal {

// The environment variable that holds the path of the launcher's terminal.
constexpr const char* variable = "ECHELON_TERMINAL";

// The terminal's path, such as "/dev/pts/3". Empty if there is none or lines cannot be redrawn: for
// pipes, for TERM=dumb, and for terminals without a width, which mpirun gives to its ranks.
std::string path();

int columns();   // current width; 80 without a terminal
int rows();      // current height; 24 without a terminal
bool colours();  // false where NO_COLOR is set (no-color.org)

// Replaces the line that was drawn before by `line`, which must fit into columns(). The cursor
// stays at its beginning, so the next output of any process overwrites it. If the terminal gets
// narrower and wraps the line, the cursor is still on its first row, so that the whole line is
// cleared. Several lines are possible, fewer than rows().
void draw(std::string_view line);
void clear();  // removes what was drawn, if anything
void keep();   // leaves it on the screen and begins a new line

}  // namespace echelon::terminal
