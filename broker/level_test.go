package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/controller"
	"github.com/ledgermq/ledgermq/internal/vfs"
)

// A node's folder names the cluster's feature level once it is above 1, in a form that programs without levels refuse; a level that
// this program does not understand is refused by name.
func TestNodeFileLevel(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if err := vfs.MkdirDurable(fs, "d"); err != nil {
		t.Fatal(err)
	}
	f, err := loadNodeFile(fs, "d", "n1")
	if err != nil {
		t.Fatal(err)
	}
	for level, want := range map[controller.Level]string{0: `"version": 1,`, 1: `"version": 1,`, 2: `"version": 2,`} {
		f.Level = level
		if err := f.save(fs, "d"); err != nil {
			t.Fatal(err)
		}
		text, err := vfs.ReadFile(fs, "d/node.json")
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("level %d: %v\n%s", level, err, text)
		}
		if again, err := loadNodeFile(fs, "d", "n1"); err != nil || again.Level != level {
			t.Errorf("level %d reads as %d, %v", level, again.Level, err)
		}
	}
	f.Level = controller.NewestLevel + 1
	if err := f.save(fs, "d"); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("this cluster's feature level is %d, this program understands %v: use a newer program", f.Level, controller.OwnLevels())
	var level *controller.LevelError
	if _, err := loadNodeFile(fs, "d", "n1"); !errors.As(err, &level) || !strings.Contains(err.Error(), want) {
		t.Errorf("a newer level: %v", err)
	}
}
