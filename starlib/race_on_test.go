//go:build race

package starlib_test

// raceEnabled says that times are not those of the program itself.
const raceEnabled = true
