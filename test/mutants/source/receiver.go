package source

import "go/ast"

// Receiver returns what a method's name begins with.
func Receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	star, isPointer := t.(*ast.StarExpr)
	if isPointer {
		t = star.X
	}
	switch generic := t.(type) {
	case *ast.IndexExpr:
		t = generic.X
	case *ast.IndexListExpr:
		t = generic.X
	}
	if isPointer {
		return "(*" + t.(*ast.Ident).Name + ")."
	}
	return t.(*ast.Ident).Name + "."
}
