// The form NFC of Unicode, as the package tokenizers has it.
#pragma once

#include "unicode.h"

namespace kvc::lib::text {

// Decomposes characters, orders their marks, and composes them again.
void compose(Characters* text);

}  // namespace kvc::lib::text
