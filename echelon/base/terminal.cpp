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
bool drawn = false;

int width_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

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

bool colours() {
  const char* const unwanted = std::getenv("NO_COLOR");
  return !unwanted || !*unwanted;
}

void draw(std::string_view line) {
  const std::lock_guard lock(drawing);
  std::string text = "\r\x1b[J";
  text += line;
  text += '\r';
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  drawn = true;
}

void clear() {
  const std::lock_guard lock(drawing);
  if (drawn) std::fputs("\r\x1b[J", stdout);
  std::fflush(stdout);
  drawn = false;
}

void keep() {
  const std::lock_guard lock(drawing);
  if (drawn) std::fputs("\n", stdout);
  std::fflush(stdout);
  drawn = false;
}

}  // namespace echelon::terminal
