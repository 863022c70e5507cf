// The terminal that a person watches standard output on, and the one line of it that is drawn over.
//
// A rank's output goes through a pipe to its launcher. Where the launcher passes on what a rank
// prints as it is, and its own output is a terminal, it names that terminal to the rank in
// ECHELON_TERMINAL: the rank then draws for it, in its present width.
#pragma once

#include <string>
#include <string_view>

namespace echelon::terminal {

// The variable that names a launcher's terminal to a rank.
constexpr const char* variable = "ECHELON_TERMINAL";

// The terminal's path, as "/dev/pts/3". Empty: nobody watches, or lines cannot be drawn over. So it
// is for pipes, for TERM=dumb, and for terminals without a width, as mpirun gives to its ranks:
// what they print goes who knows where.
std::string path();

int columns();   // at present; 80 where there is no terminal
bool colours();  // false where NO_COLOR is set (no-color.org)

// Shows `line`, which must fit into columns(), in place of the one that was drawn before. The
// cursor stays at its beginning: what is written next, by whichever process, begins there. When the
// terminal gets narrower and wraps the line anew, that is still its first row, so that nothing of
// it stays behind.
void draw(std::string_view line);
void clear();  // what was drawn, if anything was
void keep();   // leaves what was drawn where it is, and begins a new line

}  // namespace echelon::terminal
