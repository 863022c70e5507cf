// The message of the error that a call throws, so that a test can compare the whole sentence.
#pragma once

#include <exception>
#include <string>

namespace echelon {

template <class Expected, class Call>
std::string thrown(Call&& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("(an error of another kind) ") + error.what();
  }
  return "(nothing was thrown)";
}

}  // namespace echelon
