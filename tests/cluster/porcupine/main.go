// Checks a history of registers with porcupine, a linearizability checker.
//
//	porcupine HISTORY
//
// HISTORY has one JSON object a line, as `save` of tests/cluster/history.py writes it. Each point is a
// register of its own. The program prints one JSON object: {"operations": N, "points": N, "violations": [POINT...],
// "undecided": [POINT...]}.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// Value of a point that does not exist.
const absent = int64(-1)

// Time for the check of one point.
const timeout = 20 * time.Second

type operation struct {
	Point int64 `json:"point"`
	Write bool  `json:"write"`
	Value int64 `json:"value"`
	Begun int64 `json:"begun"`
	Ended int64 `json:"ended"`
}

type report struct {
	Operations int     `json:"operations"`
	Points     int     `json:"points"`
	Violations []int64 `json:"violations"`
	Undecided  []int64 `json:"undecided"`
}

var register = porcupine.Model{
	Init: func() interface{} { return absent },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		one := input.(operation)
		if one.Write {
			return true, one.Value
		}
		return state.(int64) == one.Value, state
	},
}

func read(path string) (map[int64][]porcupine.Operation, int, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	histories, count := map[int64][]porcupine.Operation{}, 0
	lines := bufio.NewScanner(file)
	for ; lines.Scan(); count++ {
		var one operation
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, 0, fmt.Errorf("%s, line %d: %w", path, count+1, err)
		}
		added := porcupine.Operation{ClientId: 0, Input: one, Call: one.Begun, Output: nil, Return: one.Ended}
		histories[one.Point] = append(histories[one.Point], added)
	}
	return histories, count, lines.Err()
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: porcupine HISTORY")
		os.Exit(2)
	}
	histories, count, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	found := report{Operations: count, Points: len(histories), Violations: []int64{}, Undecided: []int64{}}
	for point, history := range histories {
		switch porcupine.CheckOperationsTimeout(register, history, timeout) {
		case porcupine.Illegal:
			found.Violations = append(found.Violations, point)
		case porcupine.Unknown:
			found.Undecided = append(found.Undecided, point)
		}
	}
	sort.Slice(found.Violations, func(i, j int) bool { return found.Violations[i] < found.Violations[j] })
	sort.Slice(found.Undecided, func(i, j int) bool { return found.Undecided[i] < found.Undecided[j] })
	json.NewEncoder(os.Stdout).Encode(found)
}
