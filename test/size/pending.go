package main

// pending are the directories in which there are findings still. The list only becomes shorter.
var pending = []string{}
