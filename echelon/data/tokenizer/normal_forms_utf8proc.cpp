#include <utf8proc.h>

#include <algorithm>

#include "echelon/data/tokenizer/normal_forms.h"
#include "echelon/data/tokenizer/unicode.h"

namespace echelon::tok {
namespace {

// What the class has_forms lacks is too new for the library whose results ours must equal.
bool known(std::uint32_t code_point) { return UnicodeClasses::get().has(code_point, has_forms); }

}  // namespace

const bool has_normal_forms = true;

Decomposition decompose(std::uint32_t code_point, bool compatible) {
  Decomposition result{{code_point}, 1};
  if (!known(code_point)) return result;
  std::array<utf8proc_int32_t, 20> points{};
  int boundary = 0;
  const auto size = utf8proc_decompose_char(
      utf8proc_int32_t(code_point), points.data(), utf8proc_ssize_t(points.size()),
      utf8proc_option_t(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0)), &boundary);
  if (size <= 0 || size > utf8proc_ssize_t(points.size())) return result;
  std::copy_n(points.begin(), size, result.points.begin());
  result.size = int(size);
  return result;
}

int combining_class(std::uint32_t code_point) {
  if (!known(code_point)) return 0;
  return utf8proc_get_property(utf8proc_int32_t(code_point))->combining_class;
}

std::uint32_t compose(std::uint32_t first, std::uint32_t second) {
  std::array<utf8proc_int32_t, 2> pair = {utf8proc_int32_t(first), utf8proc_int32_t(second)};
  const auto size = utf8proc_normalize_utf32(pair.data(), 2,
                                             utf8proc_option_t(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  return size == 1 && known(std::uint32_t(pair[0])) ? std::uint32_t(pair[0]) : 0;
}

std::uint32_t lower_case(std::uint32_t code_point) {
  const auto lower = std::uint32_t(utf8proc_tolower(utf8proc_int32_t(code_point)));
  if (lower != code_point) return lower;
  const auto found = std::lower_bound(
      unicode_new_case_table.begin(), unicode_new_case_table.end(), code_point,
      [](const CasePair& pair, std::uint32_t point) { return pair.upper < point; });
  return found != unicode_new_case_table.end() && found->upper == code_point ? found->lower
                                                                             : code_point;
}

}  // namespace echelon::tok
