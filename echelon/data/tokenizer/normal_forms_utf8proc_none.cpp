#include "echelon/data/tokenizer/normal_forms.h"

namespace echelon::tok {

// Nothing calls these where has_normal_forms is false.
const bool has_normal_forms = false;
Decomposition decompose(std::uint32_t code_point, bool /*compatible*/) { return {{code_point}, 1}; }
int combining_class(std::uint32_t /*code_point*/) { return 0; }
std::uint32_t compose(std::uint32_t /*first*/, std::uint32_t /*second*/) { return 0; }
std::uint32_t lower_case(std::uint32_t code_point) { return code_point; }

}  // namespace echelon::tok
