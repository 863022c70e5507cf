#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/data/tokenizer/pattern.h"

namespace echelon::tok {

std::unique_ptr<Pattern> pcre2_pattern(const std::string& /*expression*/,
                                       const std::string& where) {
  throw InvalidArgument(fmt::format(
      "{} needs PCRE2, and this Echelon was built without it (in Debian: libpcre2-dev); only the "
      "patterns of GPT-2, Llama 3 and Qwen 2 do without",
      where));
}

}  // namespace echelon::tok
