// Included before the source of every kernel, so that g++ compiles CUDA C++ for x86-64.
//
// Number formats come from the toolkit's own headers, whose host paths convert exactly as documented.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector_functions.h>

#include <math.h>

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "../interface.h"
#include "qualifiers.h"

#include "builtins.h"
#include "warp.h"

#include "atomics.h"
#include "formats.h"
#include "intrinsics.h"
#include "matrix_units.h"

#include "coverage.h"
#include "describe.h"
