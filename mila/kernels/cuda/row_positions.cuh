// Where the rows of a batch stand; passed by value, for at most MOST_ROWS rows of a launch.
#pragma once

constexpr int MOST_ROWS = 64;

struct RowPositions {
  index_t start[MOST_ROWS];   // position of the row's first new element
  index_t length[MOST_ROWS];  // how many new positions are valid
};
