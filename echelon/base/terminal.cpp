#include "echelon/base/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace echelon::terminal {
namespace {

// Guards what was drawn: a warning from another thread clears it.
std::mutex drawing;
int drawn = 0;  // lines

winsize size_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0) size = {};
  return size;
}
int width_of(int fd) { return size_of(fd).ws_col; }

// A descriptor of the watched terminal, which stays open; -1: none.
int descriptor() {
  static const int found = [] {
    const char* const kind = std::getenv("TERM");
    if (kind && std::string_view(kind) == "dumb") return -1;
    if (::isatty(STDOUT_FILENO)) return width_of(STDOUT_FILENO) > 0 ? STDOUT_FILENO : -1;
    const char* const given = std::getenv(variable);
    const int fd = given ? ::open(given, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC) : -1;
    return fd >= 0 && ::isatty(fd) && width_of(fd) > 0 ? fd : -1;
  }();
  return found;
}

}  // namespace

std::string path() {
  char name[256];
  return descriptor() >= 0 && ::ttyname_r(descriptor(), name, sizeof name) == 0 ? name : "";
}

int columns() {
  const int width = descriptor() >= 0 ? width_of(descriptor()) : 0;
  return width > 0 ? width : 80;
}

int rows() {
  const int height = descriptor() >= 0 ? size_of(descriptor()).ws_row : 0;
  return height > 0 ? height : 24;
}

bool colours() {
  const char* const unwanted = std::getenv("NO_COLOR");
  return !unwanted || !*unwanted;
}

void draw(std::string_view line) {
  const std::lock_guard lock(drawing);
  std::string text = "\r\x1b[J";
  text += line;
  drawn = 1;
  for (const char c : line) drawn += c == '\n';
  if (drawn > 1) text += "\x1b[" + std::to_string(drawn - 1) + "A";
  text += '\r';
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void clear() {
  const std::lock_guard lock(drawing);
  if (drawn > 0) std::fputs("\r\x1b[J", stdout);
  std::fflush(stdout);
  drawn = 0;
}

void keep() {
  const std::lock_guard lock(drawing);
  for (; drawn > 0; --drawn) std::fputs("\n", stdout);
  std::fflush(stdout);
}

}  // namespace echelon::terminal
