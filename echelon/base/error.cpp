#include "echelon/base/error.h"

#include <cerrno>
#include <system_error>

namespace echelon {

std::string with_errno(const std::string& what) {
  const int code = errno;
  return what + ": " + std::generic_category().message(code);
}

}  // namespace echelon
