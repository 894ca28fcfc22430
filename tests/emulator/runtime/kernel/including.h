// Precompiled once for each set of compiler flags; the include path leads to the emulator's runtime folder.
#include "kernel/prelude.h"
