// Text as it stands in XML and HTML, within an element or within an attribute in double quotes.
#pragma once

#include <string>
#include <string_view>

namespace echelon {

// XML allows no control characters: a blank stands for each.
std::string escaped_xml(std::string_view text);

}  // namespace echelon
